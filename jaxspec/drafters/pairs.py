"""Functions that drafters of pairs share. Pair i is the target's features of token i and the token
after it (EAGLE, Li et al. 2024).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxspec.drafters.base import whole_vocabulary
from jaxspec.targets.layers import Attention
from jaxspec.targets.linear import Linear
from jaxspec.targets.mlp import GatedMLP
from jaxspec.targets.norm import RMSNorm, norm_of


class PairLayer(nn.Module):
    """EAGLE-3's network without its forward pass: one layer that reads pairs of a token's embedding
    and a feature, 2E wide.
    """

    config: Any

    def declare_layer(self) -> None:
        """Declare the fusion of features, the norms, the layer and what follows it."""
        c = self.config
        self.fc = Linear(c.hidden_size)
        self.token_norm = RMSNorm(norm_of(c))
        self.feature_norm = RMSNorm(norm_of(c))
        self.attention = Attention(c)
        self.mlp_norm = RMSNorm(norm_of(c))
        self.mlp = GatedMLP(c)
        self.norm = RMSNorm(norm_of(c))

    def fuse(self, features: jax.Array) -> jax.Array:
        """Fuse target features [..., len(feature_layers) * Et] to [..., E]."""
        return self.fc(features)

    def read(self, tokens: jax.Array, features: jax.Array) -> jax.Array:
        """Return what the attention reads of token embeddings and features, [..., 2E]."""
        return jnp.concatenate([self.token_norm(tokens), self.feature_norm(features)], axis=-1)


def last_row(rows: jax.Array, count: jax.Array, before: jax.Array) -> jax.Array:
    """Return the last valid row of each sequence, [B, ...].

    Args:
      rows: [B, T, ...].
      count: int32 [B], number of valid rows.
      before: [B, ...], returned for sequences without a valid row.
    """
    index = jnp.maximum(count - 1, 0).reshape(-1, *(1,) * (rows.ndim - 1))
    row = jnp.take_along_axis(rows, index, axis=1)[:, 0]
    return jnp.where(
        count.reshape(-1, *(1,) * (before.ndim - 1)) > 0, row.astype(before.dtype), before
    )


def spread(variables: Mapping[str, Any], logits: jax.Array, vocab_size: int) -> jax.Array:
    """Spread logits [..., D] of a drafter's own projection to [..., V], -inf outside a reduced
    draft vocabulary.
    """
    return (
        whole_vocabulary(logits, variables["draft"]["ids"], vocab_size)
        if "ids" in variables.get("draft", {})
        else logits
    )


def check_layers(num_layers: int, name: str) -> None:
    """Raise a ValueError unless there is one layer.

    With more layers, keys and values of committed pairs would depend on which rows saw which.
    """
    if num_layers != 1:
        raise ValueError(
            f"num_layers is {num_layers}: {name} has one layer; change its width with ffn_size"
        )
