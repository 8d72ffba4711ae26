"""A smaller language model of the target's family."""

from jaxspec.drafters.draft_model.drafter import DraftModelConfig, make_draft_model_drafter
from jaxspec.drafters.draft_model.files import FORMAT
from jaxspec.drafters.record import DrafterRecord

DRAFT_MODEL = DrafterRecord(
    name="draft_model",
    config=DraftModelConfig,
    make=make_draft_model_drafter,
    compared=("chain", "dynamic"),
    further=("static", "lattice"),
    default_builder="dynamic",
    peer_method="chain@6",
    assistant=True,
    files=FORMAT,
    page="draft_model/README.md",
)
