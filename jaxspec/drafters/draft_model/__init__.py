"""A smaller language model of the target's family."""

from jaxspec.drafters.draft_model.config import SmallModelConfig
from jaxspec.drafters.draft_model.drafter import make_small_model_drafter
from jaxspec.drafters.draft_model.files import FORMAT
from jaxspec.drafters.record import DrafterRecord

SMALL_MODEL = DrafterRecord(
    name="small",
    config=SmallModelConfig,
    make=make_small_model_drafter,
    compared=("chain", "dynamic"),
    further=("static", "lattice"),
    default_builder="dynamic",
    peer_method="chain@6",
    assistant=True,
    files=FORMAT,
    page="draft_model/README.md",
)
