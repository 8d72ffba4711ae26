"""Draw the noise of the rules that do not use the shared Gumbel noise."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxspec.core.sampling.noise import fold_in, gumbel, uniform
from jaxspec.core.sampling.sampling import argmax
from jaxspec.core.state import Tree

# Folded into a sequence's key. Positions are below 2^31, so none of these is the key of a
# position's Gumbel noise.
ACCEPT, BONUS, CANDIDATES = 0xFFFFFF01, 0xFFFFFF02, 0xFFFFFF03


def fold_round_keys(keys: jax.Array, position: jax.Array, purpose: int) -> jax.Array:
    """Fold a purpose and the round's position into each key; no two rounds get equal keys.

    Args:
      keys: [B], one per sequence.
      position: int32 [B], absolute position of the root; it differs between the rounds of a
        sequence.
      purpose: `ACCEPT`, `BONUS` or `CANDIDATES`.

    Returns:
      Keys [B].
    """
    return fold_in(fold_in(keys, jnp.uint32(purpose)), position)


def draw_uniform(keys: jax.Array, position: jax.Array, tree: Tree) -> jax.Array:
    """Draw a uniform number per tree row, float32 [B, N], to decide whether the row is accepted."""
    return uniform(fold_round_keys(keys, position, ACCEPT), tree.token.shape[1])


def draw_bonus(probability: jax.Array, keys: jax.Array, position: jax.Array) -> jax.Array:
    """Draw a token, int32 [B], from `probability` [B, V], normalised or not."""
    noise = gumbel(
        fold_round_keys(keys, position, BONUS),
        jnp.zeros((position.shape[0], 1), jnp.int32),
        probability.shape[-1],
    )
    return argmax(jnp.log(probability) + noise[:, 0])
