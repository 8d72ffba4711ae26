"""GRIFFIN: one decoder layer whose outputs are two, a prediction and the next feature."""

from jaxspec.drafters.griffin.drafter import make_griffin_drafter
from jaxspec.drafters.griffin.files import FORMAT
from jaxspec.drafters.griffin.network import GriffinConfig
from jaxspec.drafters.record import DrafterRecord

GRIFFIN = DrafterRecord(
    name="griffin",
    config=GriffinConfig,
    make=make_griffin_drafter,
    compared=("chain", "dynamic"),
    further=("static", "lattice"),
    default_builder="dynamic",
    files=FORMAT,
    page="griffin/README.md",
)
