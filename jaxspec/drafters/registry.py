"""Which bundle a drafter's config stands for."""

from __future__ import annotations

from jaxspec.core import config as configs
from jaxspec.drafters.base import Drafter
from jaxspec.drafters.dflash.drafter import make_block_drafter
from jaxspec.drafters.draft_model.drafter import make_small_model_drafter
from jaxspec.drafters.eagle3.drafter import make_eagle_drafter
from jaxspec.drafters.falcon.drafter import make_falcon_drafter
from jaxspec.drafters.medusa.drafter import make_medusa_drafter
from jaxspec.drafters.parallelspec.drafter import make_parallelspec_drafter
from jaxspec.drafters.prompt_lookup.drafter import make_lookup_drafter
from jaxspec.drafters.specblock.drafter import make_specblock_drafter

_MAKERS = {
    configs.BlockDrafterConfig: make_block_drafter,
    configs.EagleConfig: make_eagle_drafter,
    configs.FalconConfig: make_falcon_drafter,
    configs.MedusaConfig: make_medusa_drafter,
    configs.ParallelSpecConfig: make_parallelspec_drafter,
    configs.PromptLookupConfig: make_lookup_drafter,
    configs.SmallModelConfig: make_small_model_drafter,
    configs.SpecBlockConfig: make_specblock_drafter,
}


def make_drafter(config) -> Drafter:
    """The bundle of `config`; equal configs give the identical one."""
    return _MAKERS[type(config)](config)
