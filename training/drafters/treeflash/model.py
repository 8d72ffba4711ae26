"""The TreeFlash drafter to train: its config for a target, its first weights, and its backbone.

The backbone may be that of a DFlash drafter, to which a correction is added.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from jaxspec.core.config import TargetConfig
from jaxspec.drafters.dflash.network import BlockDrafterConfig
from jaxspec.drafters.treeflash.network import Correction, TreeFlashConfig

from ..dflash.model import init_block_drafter, make_block_config
from ..model_options import ModelOptions

# The submodule that is DFlash's network.
BACKBONE = "backbone"


def make_treeflash_config(
    options: ModelOptions, target: TargetConfig, tokenizer: str | None = None
) -> TreeFlashConfig:
    """Make the config of a TreeFlash drafter; arguments and errors as in `make_block_config`."""
    fields = _fields(make_block_config(options, target, tokenizer, causal=bool(options.causal)))
    return TreeFlashConfig(**fields | {"builder": fields["builder"] or TreeFlashConfig.builder})


def init_treeflash(config: TreeFlashConfig, seed: int):
    """Initialise float32 variables of `TreeFlash(config)`.

    The backbone's are those of `init_block_drafter` with the same seed. The correction starts
    without a say: its last projection is zero, so the drafter equals its backbone. (The authors'
    class means to do so too, and then draws that projection again.)
    """
    backbone = init_block_drafter(config, seed)["params"]
    if not config.correction:
        return {"params": {BACKBONE: backbone}}
    row = jnp.zeros((1, 1, config.hidden_size))
    key = jax.random.fold_in(jax.random.key(seed), 1)
    correction = jax.jit(Correction(config).init)(key, row, row)["params"]
    correction |= {"down": jax.tree.map(jnp.zeros_like, correction["down"])}
    return {"params": {BACKBONE: backbone, "correction": correction}}


def find_backbone(config: TreeFlashConfig, found) -> BlockDrafterConfig:
    """Return what `found` must be to begin the training of `config`: itself, or its backbone.

    Args:
      config: of the drafter to train.
      found: config of the drafter to start from: a TreeFlash drafter, one without a correction, or
        a DFlash drafter.
    """
    if isinstance(found, TreeFlashConfig):
        return config if found.correction else dataclasses.replace(config, correction=False)
    return BlockDrafterConfig(**_fields(config) | {"builder": found.builder})


def _fields(config: BlockDrafterConfig) -> dict:
    return {
        field.name: getattr(config, field.name) for field in dataclasses.fields(BlockDrafterConfig)
    }
