"""Configure a JetSpec head of the published shape for any target."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxspec.core.config import TargetConfig
from jaxspec.core.state import KVCache
from jaxspec.drafters.dflash.config import BlockDrafterConfig
from jaxspec.drafters.dflash.network import BlockDrafter

_SHARED = (
    "hidden_size",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "ffn_size",
    "rope_theta",
    "rope_scaling",
    "norm_eps",
)


def head_config(target: TargetConfig, *, block_size: int, num_layers: int) -> BlockDrafterConfig:
    """Configure a head with layers of the target's sizes.

    It reads five target layers, or three if the target has fewer than 9.
    """
    count, last = (
        (5, target.num_layers - 3) if target.num_layers > 8 else (3, target.num_layers - 2)
    )
    layers = tuple(round(1 + i * (last - 1) / (count - 1)) for i in range(count))
    return BlockDrafterConfig(
        **{field: getattr(target, field) for field in _SHARED},
        num_layers=num_layers,
        block_size=block_size,
        mask_token_id=target.vocab_size - 1,
        feature_layers=layers,
        causal=True,
        target_hidden_size=target.hidden_size,
        vocab_size=target.vocab_size,
    )


def init_head(config: BlockDrafterConfig) -> dict[str, Any]:
    """Initialize the network's variables, for their shapes."""
    row = jnp.zeros((1, 1), jnp.int32)
    features = jnp.zeros((1, 1, len(config.feature_layers) * config.target_hidden_size))

    def touch(head: BlockDrafter) -> jax.Array:
        keys, values = head.context_kv(features, row)
        cache = KVCache(keys.swapaxes(2, 3), values.swapaxes(2, 3), row[0])
        return head(jnp.zeros((1, 1, config.hidden_size)), row, cache)

    return BlockDrafter(config).init(jax.random.key(0), method=touch)
