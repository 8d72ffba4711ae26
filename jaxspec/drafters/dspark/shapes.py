"""Configure a DSpark drafter of the published shape for any target."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxspec.core.config import TargetConfig, TransformerConfig
from jaxspec.core.state import KVCache
from jaxspec.drafters.dspark.config import DSparkConfig
from jaxspec.drafters.dspark.network import DSpark


def published_config(
    target: TargetConfig,
    feature_layers: tuple[int, ...],
    *,
    num_layers: int = 5,
    block_size: int = 7,
    markov_rank: int = 256,
) -> DSparkConfig:
    """Configure a drafter whose layers have the target's sizes, as all of DeepSpec's do."""
    names = {field.name for field in dataclasses.fields(TransformerConfig)} - {"num_layers"}
    return DSparkConfig(
        **{name: getattr(target, name) for name in names},
        num_layers=num_layers,
        block_size=block_size,
        mask_token_id=target.vocab_size - 1,
        feature_layers=feature_layers,
        target_hidden_size=target.hidden_size,
        vocab_size=target.vocab_size,
        markov_rank=markov_rank,
        confidence_with_markov=markov_rank > 0,
    )


def init_variables(config: DSparkConfig) -> dict[str, Any]:
    """Initialize the variables of `DSpark(config)`, for their shapes."""
    row = jnp.zeros((1, 1), jnp.int32)
    features = jnp.zeros((1, 1, len(config.feature_layers) * config.target_hidden_size))

    def touch(drafter: DSpark) -> jax.Array:
        keys, values = drafter.context_kv(features, row)
        cache = KVCache(keys.swapaxes(2, 3), values.swapaxes(2, 3), row[0])
        hidden = drafter(jnp.zeros((1, 1, config.hidden_size)), row, cache)
        if config.markov_rank:
            drafter.step_bias(row, hidden)
        if config.confidence:
            drafter.confidence(row, hidden)
        return hidden

    variables = dict(DSpark(config).init(jax.random.key(0), method=touch))
    if config.draft_vocab_size is not None:
        ids = jnp.arange(config.draft_vocab_size, dtype=jnp.int32)
        head = jnp.zeros((config.hidden_size, config.draft_vocab_size))
        variables["draft"] = {"ids": ids, "lm_head": head}
    return variables
