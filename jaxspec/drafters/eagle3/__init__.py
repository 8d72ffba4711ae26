"""EAGLE-3: one decoder layer that drafts a token at a time from its own output."""

from jaxspec.drafters.eagle3.drafter import make_eagle_drafter
from jaxspec.drafters.eagle3.files import FORMAT
from jaxspec.drafters.eagle3.network import EagleConfig
from jaxspec.drafters.record import DrafterRecord

EAGLE3 = DrafterRecord(
    name="eagle3",
    config=EagleConfig,
    make=make_eagle_drafter,
    compared=("chain", "dynamic"),
    further=("static", "lattice"),
    default_builder="dynamic",
    files=FORMAT,
    page="eagle3/README.md",
)
