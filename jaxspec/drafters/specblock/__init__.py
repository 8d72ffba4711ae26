"""SpecBlock: blocks of tokens, each from any position of an earlier block."""

from jaxspec.drafters.record import DrafterRecord
from jaxspec.drafters.specblock.drafter import make_specblock_drafter
from jaxspec.drafters.specblock.files import FORMAT
from jaxspec.drafters.specblock.network import SpecBlockConfig

# `best_first`, `expand` and `beam` need all depths before they choose, so they use only the first
# block.
SPECBLOCK = DrafterRecord(
    name="specblock",
    config=SpecBlockConfig,
    make=make_specblock_drafter,
    compared=("chain", "rank_guided", "best_first"),
    further=("static", "expand", "beam"),
    default_builder="rank_guided",
    files=FORMAT,
    page="specblock/README.md",
)
