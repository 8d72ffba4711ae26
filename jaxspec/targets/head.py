"""The head: the projection of hidden states to logits of a vocabulary.

It is a target's or a drafter's own `lm_head` [E, V], the target's table of embeddings [V, E] if it
is tied, or columns of the target's projection that a drafter with a reduced draft vocabulary
borrows, in its collection "draft" (`jaxspec.drafters.base`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxspec.core.config import TargetConfig
from jaxspec.targets.layouts.registry import find_added
from jaxspec.targets.linear import Weights, declare, multiply, scale_of


def declare_head(module: nn.Module, inputs: int, outputs: int) -> Weights:
    """Declare a module's own projection [E, V]; `multiply` gives logits by it."""
    return declare(module, "lm_head", (inputs, outputs))


def project_draft(variables: Mapping[str, Any], hidden: jax.Array) -> jax.Array:
    """Project hidden states [..., E] to a draft vocabulary by borrowed columns, [..., D]."""
    return multiply(
        hidden, Weights(variables["draft"]["lm_head"], find_added(variables, "lm_head"))
    )


def select_columns(target: Mapping[str, Any], config: TargetConfig, ids: Any) -> jax.Array:
    """Select the columns [E, D] of the target's projection for tokens `ids` [D].

    They are float32 if it is quantised.
    """
    name = "embedding" if config.tie_embeddings else "lm_head"
    weights = target["params"][name]
    scale = scale_of(Weights(weights, find_added(target, name)))
    columns = weights[ids].T if config.tie_embeddings else weights[:, ids]
    return columns if scale is None else columns.astype(jnp.float32) * scale[ids]
