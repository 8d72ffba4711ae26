"""Write a few columns of each sequence's buffer."""

from __future__ import annotations

import functools

import jax


def write_columns(buffer: jax.Array, values: jax.Array, start: jax.Array) -> jax.Array:
    """Write `values` [B, K, …] into `buffer` [B, M, …] from column `start` int32 [B] on."""
    if buffer.shape[0] == 1:  # in place; for more sequences XLA makes a scatter
        return jax.lax.dynamic_update_slice_in_dim(buffer, values, start[0], axis=1)
    one = functools.partial(jax.lax.dynamic_update_slice_in_dim, axis=0)
    return jax.vmap(one)(buffer, values, start)
