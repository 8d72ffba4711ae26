"""Configure a DSpark drafter of the published shape for any target."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxspec.core.config import TargetConfig
from jaxspec.drafters.dflash.shapes import init_backbone, layer_fields
from jaxspec.drafters.dspark.network import DSpark, DSparkConfig


def published_config(
    target: TargetConfig,
    feature_layers: tuple[int, ...],
    *,
    num_layers: int = 5,
    block_size: int = 7,
    markov_rank: int = 256,
) -> DSparkConfig:
    """Configure a drafter whose layers have the target's sizes, as all of DeepSpec's do."""
    return DSparkConfig(
        **layer_fields(target),
        num_layers=num_layers,
        block_size=block_size,
        feature_layers=feature_layers,
        markov_rank=markov_rank,
        confidence_with_markov=markov_rank > 0,
    )


def init_variables(config: DSparkConfig) -> dict[str, Any]:
    """Initialize the variables of `DSpark(config)`, for their shapes."""

    def touch(drafter: DSpark, row: jax.Array, hidden: jax.Array) -> None:
        if config.markov_rank:
            drafter.step_bias(row, hidden)
        if config.confidence:
            drafter.confidence(row, hidden)

    variables = init_backbone(DSpark(config), config, touch)
    if config.draft_vocab_size is not None:
        ids = jnp.arange(config.draft_vocab_size, dtype=jnp.int32)
        head = jnp.zeros((config.hidden_size, config.draft_vocab_size))
        variables["draft"] = {"ids": ids, "lm_head": head}
    return variables
