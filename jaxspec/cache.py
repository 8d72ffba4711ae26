"""The key/value cache: allocate, append, gather an accepted path."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxspec.config import TransformerConfig
from jaxspec.state import KVCache


def allocate(config: TransformerConfig, batch: int, capacity: int, dtype) -> KVCache:
    """Empty cache for `capacity` rows a sequence; zeros, because masked rows still meet a weight of zero."""
    shape = (config.num_layers, batch, capacity, config.num_kv_heads, config.head_dim)
    return KVCache(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype), jnp.zeros(batch, jnp.int32))


def append(cache: KVCache, k: jax.Array, v: jax.Array, count: jax.Array) -> KVCache:
    """Write new rows behind each sequence's `length` and keep `count` of them.

    Args:
      k, v: [L, B, T, K, D]. All T rows are written; those at or beyond `count` stay masked and are overwritten later, so
        the capacity must hold length + T rows.
      count: int32 [B], rows that become part of the sequence.
    """
    write = jax.vmap(
        lambda rows, new, start: jax.lax.dynamic_update_slice_in_dim(rows, new, start, axis=1),
        in_axes=(1, 1, 0),
        out_axes=1,
    )
    k, v = k.astype(cache.k.dtype), v.astype(cache.v.dtype)
    return KVCache(write(cache.k, k, cache.length), write(cache.v, v, cache.length), cache.length + count)


def gather_path(rows: jax.Array, path: jax.Array) -> jax.Array:
    """Rows [L, B, A, K, D] of `rows` [L, B, N, K, D] along `path` int32 [B, A]."""
    return jnp.take_along_axis(rows, path[None, :, :, None, None], axis=2)
