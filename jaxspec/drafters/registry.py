"""Which bundle a drafter's config stands for."""

from __future__ import annotations

from jaxspec import config as configs
from jaxspec.drafters.base import Drafter
from jaxspec.drafters.block import make_block_drafter
from jaxspec.drafters.eagle import make_eagle_drafter
from jaxspec.drafters.falcon import make_falcon_drafter
from jaxspec.drafters.lookup import make_lookup_drafter
from jaxspec.drafters.medusa import make_medusa_drafter
from jaxspec.drafters.parallelspec import make_parallelspec_drafter
from jaxspec.drafters.small_model import make_small_model_drafter
from jaxspec.drafters.specblock import make_specblock_drafter

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
