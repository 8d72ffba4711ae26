"""DFlash2: DFlash with convolutions inside the block and a selector of candidates."""

import dataclasses

from jaxspec.drafters.dflash2.drafter import make_dflash2_drafter
from jaxspec.drafters.dflash2.files import FORMAT
from jaxspec.drafters.dflash2.network import DFlash2Config
from jaxspec.drafters.dspark import DSPARK

# Like DSpark, it drafts a token per step from every node after one forward of the block.
DFLASH2 = dataclasses.replace(
    DSPARK,
    name="dflash2",
    config=DFlash2Config,
    make=make_dflash2_drafter,
    files=FORMAT,
    page="dflash2/README.md",
)
