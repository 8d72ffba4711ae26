"""ParallelSpec: an EAGLE-like layer that fills mask tokens in one forward."""

from jaxspec.drafters.parallelspec.drafter import make_parallelspec_drafter
from jaxspec.drafters.parallelspec.files import FORMAT
from jaxspec.drafters.parallelspec.network import ParallelSpecConfig
from jaxspec.drafters.record import DrafterRecord

PARALLELSPEC = DrafterRecord(
    name="parallelspec",
    config=ParallelSpecConfig,
    make=make_parallelspec_drafter,
    compared=("chain", "best_first"),
    further=("expand", "beam", "static", "dynamic"),
    default_builder="best_first",
    files=FORMAT,
    page="parallelspec/README.md",
)
