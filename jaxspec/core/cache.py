"""The key/value cache: allocate, append, gather an accepted path.

A head's rows lie side by side ([L, B, K, S, D]): attention then reads them as they are, while rows
in the order of tokens would be transposed by XLA in every layer of every round. New rows come from
the forward in the order of tokens.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxspec.core.config import TransformerConfig
from jaxspec.core.state import KVCache


def allocate(config: TransformerConfig, batch: int, capacity: int, dtype) -> KVCache:
    """Empty cache for `capacity` rows a sequence; zeros, because masked rows still meet a weight of
    zero.
    """
    shape = (config.num_layers, batch, config.num_kv_heads, capacity, config.head_dim)
    return KVCache(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype), jnp.zeros(batch, jnp.int32))


def filled(k: jax.Array, v: jax.Array, length: jax.Array) -> KVCache:
    """A cache that holds just the rows `k`, `v` [L, B, T, K, D], of which the first `length` int32
    [B] are seen.
    """
    return KVCache(k.swapaxes(2, 3), v.swapaxes(2, 3), length)


def append(cache: KVCache, k: jax.Array, v: jax.Array, count: jax.Array) -> KVCache:
    """Write new rows behind each sequence's `length` and keep `count` of them.

    Args:
      k, v: [L, B, T, K, D]. All T rows are written; those at or beyond `count` stay masked and are
        overwritten later, so the capacity must hold length + T rows.
      count: int32 [B], rows that become part of the sequence.
    """
    # Where nothing is kept the rows go to the unused end. That makes the write wait for `count`,
    # which the decode loop knows last: were it free to run before the reads of this round, XLA
    # would copy the cache to keep both.
    start = jnp.where(count > 0, cache.length, cache.k.shape[3] - k.shape[2])
    return KVCache(_write(cache.k, k, start), _write(cache.v, v, start), cache.length + count)


def _write(rows: jax.Array, new: jax.Array, start: jax.Array) -> jax.Array:
    """`new` [L, B, T, K, D] into `rows` [L, B, K, S, D] at row start[b] of each sequence, in place.

    One slice update a sequence: under vmap these become a scatter for which XLA changes the cache's
    layout, at the price of whole-cache copies every round.
    """
    new = new.swapaxes(2, 3).astype(rows.dtype)
    for b in range(start.shape[0]):
        rows = jax.lax.dynamic_update_slice(rows, new[:, b : b + 1], (0, b, 0, start[b], 0))
    return rows


def gather_path(rows: jax.Array, path: jax.Array) -> jax.Array:
    """Rows [L, B, A, K, D] of `rows` [L, B, N, K, D] along `path` int32 [B, A]."""
    return jnp.take_along_axis(rows, path[None, :, :, None, None], axis=2)
