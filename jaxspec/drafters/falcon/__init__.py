"""Falcon: each forward drafts several tokens, and further forwards continue the path."""

from jaxspec.drafters.falcon.drafter import make_falcon_drafter
from jaxspec.drafters.falcon.files import FORMAT
from jaxspec.drafters.falcon.network import FalconConfig
from jaxspec.drafters.record import DrafterRecord

# `best_first`, `expand` and `beam` need all depths before they choose, so they use only the first
# block.
FALCON = DrafterRecord(
    name="falcon",
    config=FalconConfig,
    make=make_falcon_drafter,
    compared=("chain", "static"),
    further=("best_first", "expand", "beam"),
    files=FORMAT,
    page="falcon/README.md",
)
