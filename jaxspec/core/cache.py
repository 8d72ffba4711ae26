"""The key/value cache: allocate, append, gather an accepted path, run some of its sequences alone.

The rows of a head are contiguous ([L, B, K, S, D]), so attention reads them as they are. With rows
in token order, XLA would transpose them in every layer of every round. New rows come from the
forward in token order.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import flax.struct
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from jaxspec.core.config import TransformerConfig
from jaxspec.core.state import KVCache


def allocate(config: TransformerConfig, batch: int, capacity: int, dtype: DTypeLike) -> KVCache:
    """Allocate an empty cache with `capacity` rows per sequence.

    It is filled with zeros, because masked rows are still multiplied by a weight of zero.
    """
    shape = (config.num_layers, batch, config.num_kv_heads, capacity, config.head_dim)
    return KVCache(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype), jnp.zeros(batch, jnp.int32))


def filled(k: jax.Array, v: jax.Array, length: jax.Array) -> KVCache:
    """Make a cache of the rows `k` and `v` [L, B, T, K, D] with `length` int32 [B] seen rows."""
    return KVCache(k.swapaxes(2, 3), v.swapaxes(2, 3), length)


class SequenceCache(flax.struct.PyTreeNode):
    """One sequence of a cache of several, for a forward of this sequence alone (B = 1).

    It is read and written where it is: a slice of it would be a copy.

    Attributes:
      k, v: [L, B, K, S, D], the rows of all sequences.
      length: int32 [1], rows of this sequence.
      sequence: int32 [], which one it is.
    """

    k: jax.Array
    v: jax.Array
    length: jax.Array
    sequence: jax.Array

    @property
    def capacity(self) -> int:
        """Return S."""
        return self.k.shape[3]

    def prefix(self, layer: int, first: jax.Array | None = None) -> tuple:
        """Return what attention of `layer` reads, as `KVCache.prefix` does.

        A layer of a sequence becomes a layer of its own: k and v are [L * B, 1, K, S, D].
        """
        layers, batch, *row = self.k.shape
        k, v = (rows.reshape(layers * batch, 1, *row) for rows in (self.k, self.v))
        return k, v, layer * batch + self.sequence, self.length, first


class PartCache(flax.struct.PyTreeNode):
    """P neighbouring sequences of a cache of B, for forwards of these alone.

    They are read and written where they are, as one is in `SequenceCache`. But here the cache keeps
    its shape: XLA would copy one that loops over rounds carry and that changes its shape in them.
    Only the attention of `pallas_kernels.reference` and `pallas_kernels.attention.blocks` can read
    it.

    Attributes:
      k, v: [L, B, K, S, D], the rows of all sequences.
      length: int32 [P], rows of each of these sequences.
      sequence: int32 [], the first of them.
    """

    k: jax.Array
    v: jax.Array
    length: jax.Array
    sequence: jax.Array

    @property
    def capacity(self) -> int:
        """Return S."""
        return self.k.shape[3]

    def prefix(self, layer: int, first: jax.Array | None = None) -> tuple:
        """Return what attention of `layer` reads, as `KVCache.prefix` does."""
        place = jnp.stack([jnp.asarray(layer, jnp.int32), self.sequence])
        return self.k, self.v, place, self.length, first


class Packing(NamedTuple):
    """Where R packed rows come from: those of B slots side by side, in order, then padding.

    Attributes:
      slot: int32 [R], the slot of each packed row; padding belongs to the last slot.
      row: int32 [R], its row in the slot's tree; padding repeats the last slot's root.
      place: int32 [B, N], the packed row of each tree row; beyond the slot's rows, that of its
        root.
      count: int32 [B], rows of each slot.
    """

    slot: jax.Array
    row: jax.Array
    place: jax.Array
    count: jax.Array


class PackedCache(flax.struct.PyTreeNode):
    """A cache of B sequences, for a forward of R packed rows [1, R] of them.

    Attributes:
      sequences: the cache of these sequences.
      packing: where the rows come from.
    """

    sequences: KVCache | PartCache
    packing: Packing

    @property
    def capacity(self) -> int:
        """Return the rows of a sequence."""
        return self.sequences.capacity

    def prefix(self, layer: int, first: jax.Array | None = None) -> PackedPrefix:
        """Return what attention of `layer` reads, see `jaxspec.targets.attention.attend`."""
        return PackedPrefix(self.sequences.prefix(layer, first), self.packing)


class PackedPrefix(NamedTuple):
    """What attention of packed rows reads; the mask is that of the rows [B, N, W] of all sequences.

    Attributes:
      whole: of the sequences, see `KVCache.prefix`.
      packing: see `PackedCache`.
    """

    whole: tuple
    packing: Packing


Cache = TypeVar("Cache", bound=KVCache | SequenceCache | PartCache)


def append(cache: Cache, k: jax.Array, v: jax.Array, count: jax.Array) -> Cache:
    """Write new rows after each sequence's `length` and keep `count` of them.

    Args:
      k, v: [L, B, T, K, D]. All T rows are written; those at or beyond `count` stay masked and are
        overwritten later, so the capacity must hold length + T rows.
      count: int32 [B], rows that become part of the sequence.
    """
    # If nothing is kept, write to the unused end. The write then depends on `count`, which the
    # decode loop computes last. A write that could run before the reads of this round would make
    # XLA copy the cache.
    start = jnp.where(count > 0, cache.length, cache.k.shape[3] - k.shape[2])
    first = 0 if isinstance(cache, KVCache) else cache.sequence
    return cache.replace(
        k=_write(cache.k, k, first, start),
        v=_write(cache.v, v, first, start),
        length=cache.length + count,
    )


def _write(rows: jax.Array, new: jax.Array, first: int | jax.Array, start: jax.Array) -> jax.Array:
    """Write `new` [L, B, T, K, D] to `rows` [L, B, K, S, D], in place: sequence b of it to sequence
    first + b, from row start[b] on.

    This is one slice update per sequence. Under vmap it would become a scatter, for which XLA
    changes the cache's layout and copies the whole cache in every round.
    """
    new = new.swapaxes(2, 3).astype(rows.dtype)
    if new.shape == rows.shape:  # They fill the cache, wherever they begin.
        return new
    for b in range(start.shape[0]):
        at = (0, first + b, 0, start[b], 0)
        rows = jax.lax.dynamic_update_slice(rows, new[:, b : b + 1], at)
    return rows


def gather_path(rows: jax.Array, path: jax.Array) -> jax.Array:
    """Gather rows [L, B, A, K, D] of `rows` [L, B, N, K, D] along `path` int32 [B, A]."""
    return jnp.take_along_axis(rows, path[None, :, :, None, None], axis=2)
