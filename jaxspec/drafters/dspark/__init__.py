"""DSpark: DFlash's backbone with a head over the previous token and a confidence head."""

from jaxspec.drafters.dflash import rewind
from jaxspec.drafters.dspark.drafter import make_dspark_drafter, resize
from jaxspec.drafters.dspark.files import FORMAT
from jaxspec.drafters.dspark.network import DSparkConfig
from jaxspec.drafters.record import DrafterRecord

DSPARK = DrafterRecord(
    name="dspark",
    config=DSparkConfig,
    make=make_dspark_drafter,
    compared=("chain", "dynamic", "lattice"),
    further=("static",),
    default_builder="lattice",
    files=FORMAT,
    resize=resize,
    one_forward=True,
    rewind=rewind,
    page="dspark/README.md",
)
