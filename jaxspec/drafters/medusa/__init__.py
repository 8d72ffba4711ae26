"""Medusa: independent heads over the target's last hidden state."""

from jaxspec.drafters.medusa.files import FORMAT
from jaxspec.drafters.medusa.network import MedusaConfig, make_medusa_drafter
from jaxspec.drafters.record import DrafterRecord

MEDUSA = DrafterRecord(
    name="medusa",
    config=MedusaConfig,
    make=make_medusa_drafter,
    compared=("chain", "best_first", "static"),
    further=("expand", "beam", "dynamic"),
    default_builder="best_first",
    files=FORMAT,
    page="medusa/README.md",
)
