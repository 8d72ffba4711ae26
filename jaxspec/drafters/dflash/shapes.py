"""Configure block drafters of the published shapes for any target, and initialise their variables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxspec.core.cache import filled
from jaxspec.core.config import TargetConfig, share_sizes
from jaxspec.drafters.dflash.network import BlockDrafter, BlockDrafterConfig


def layer_fields(target: TargetConfig) -> dict[str, Any]:
    """Return the fields of a drafter's config that give its layers the target's sizes."""
    return share_sizes(target) | {
        "mask_token_id": target.vocab_size - 1,
        "target_hidden_size": target.hidden_size,
        "vocab_size": target.vocab_size,
    }


def head_config(target: TargetConfig, *, block_size: int, num_layers: int) -> BlockDrafterConfig:
    """Configure a JetSpec head with layers of the target's sizes.

    It reads five target layers, or three if the target has fewer than 9.
    """
    count, last = (
        (5, target.num_layers - 3) if target.num_layers > 8 else (3, target.num_layers - 2)
    )
    layers = tuple(round(1 + i * (last - 1) / (count - 1)) for i in range(count))
    # A head's layers are Qwen3's, whatever the target's are.
    fields = layer_fields(target)
    sizes = {"num_layers": num_layers, "block_size": block_size, "feature_layers": layers}
    return BlockDrafterConfig(**fields, **sizes, causal=True)


def init_head(config: BlockDrafterConfig) -> dict[str, Any]:
    """Initialize the network's variables, for their shapes."""
    return init_backbone(BlockDrafter(config), config)


def init_backbone(
    module: nn.Module,
    config: BlockDrafterConfig,
    touch: Callable[[Any, jax.Array, jax.Array], Any] = lambda module, row, hidden: None,
) -> dict[str, Any]:
    """Initialize the variables of a network with DFlash's backbone.

    Args:
      touch: (the bound module, a token int32 [1, 1], its hidden state [1, 1, E]) -> anything; it
        runs the parts beside the backbone.
    """
    row = jnp.zeros((1, 1), jnp.int32)
    features = jnp.zeros((1, 1, len(config.feature_layers) * config.target_hidden_size))

    def run(drafter: Any) -> jax.Array:
        keys, values = drafter.context_kv(features, row)
        cache = filled((keys,), (values,), row[0])
        hidden = drafter(jnp.zeros((1, 1, config.hidden_size)), row, cache)
        touch(drafter, row, hidden)
        return hidden

    return dict(module.init(jax.random.key(0), method=run))
