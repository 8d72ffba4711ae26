"""DFlash2: DFlash with convolutions inside the block and a selector of candidates."""

from jaxspec.drafters.dflash import rewind
from jaxspec.drafters.dflash2.drafter import make_dflash2_drafter
from jaxspec.drafters.dflash2.files import FORMAT
from jaxspec.drafters.dflash2.network import DFlash2Config
from jaxspec.drafters.dspark.drafter import resize
from jaxspec.drafters.record import DrafterRecord

DFLASH2 = DrafterRecord(
    name="dflash2",
    config=DFlash2Config,
    make=make_dflash2_drafter,
    compared=("chain", "dynamic", "lattice"),
    further=("static",),
    default_builder="lattice",
    files=FORMAT,
    resize=resize,
    one_forward=True,
    rewind=rewind,
    page="dflash2/README.md",
)
