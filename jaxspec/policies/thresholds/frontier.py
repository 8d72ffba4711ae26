"""What rules over a growing tree look at: of the nodes to be drafted from next, the one that is
likeliest to be accepted.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp


def at_best(values: jax.Array, frontier: jax.Array) -> jax.Array:
    """`values` [B, M, ...] of the node with the largest path log-probability, [B, ...]; equals by
    index.

    Args:
      frontier: float32 [B, M], path log-probabilities, -inf: no node.
    """
    best = jnp.argmax(frontier, axis=1).reshape(-1, 1, *(1,) * (values.ndim - 2))
    return jnp.take_along_axis(values, best, axis=1)[:, 0]
