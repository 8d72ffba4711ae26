"""TreeFlash: DFlash's block, corrected for the token before each slot."""

from jaxspec.drafters.dflash import rewind
from jaxspec.drafters.dspark import resize
from jaxspec.drafters.record import DrafterRecord
from jaxspec.drafters.treeflash.drafter import make_treeflash_drafter
from jaxspec.drafters.treeflash.files import FORMAT
from jaxspec.drafters.treeflash.network import TreeFlashConfig

TREEFLASH = DrafterRecord(
    name="treeflash",
    config=TreeFlashConfig,
    make=make_treeflash_drafter,
    compared=("chain", "lattice"),
    further=("static", "dynamic"),
    default_builder="lattice",
    files=FORMAT,
    resize=resize,
    one_forward=True,
    rewind=rewind,
    page="treeflash/README.md",
)
