"""The key/value cache: allocate, append, gather an accepted path, run some of its sequences alone.

The rows of a head are contiguous ([L, B, K, S, D]), so attention reads them as they are. With rows
in token order, XLA would transpose them in every layer of every round. New rows come from the
forward in token order. Arrays come in tuples, one for each group of layers (`jaxspec.core.state`).
"""

from __future__ import annotations

import functools
from typing import NamedTuple, TypeVar

import flax.struct
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from jaxspec.core.config import TransformerConfig
from jaxspec.core.recurrent import Stash, allocate_states, commit
from jaxspec.core.state import KVCache, RecurrentState

Rows = tuple[jax.Array, ...]


def allocate(config: TransformerConfig, batch: int, capacity: int, dtype: DTypeLike) -> KVCache:
    """Allocate an empty cache with `capacity` rows per sequence. Keys and values are in the
    config's `cache_dtype` or else in `dtype`; states of recurrent layers are never narrower.

    It is filled with zeros, because masked rows are still multiplied by a weight of zero.
    """
    k, v, kept = [], [], config.cache_dtype or dtype
    for group in config.list_cache_groups():
        rows = len(group.layers), batch, group.kv_heads, capacity
        k.append(jnp.zeros((*rows, group.head_dim), kept))
        v.append(jnp.zeros((*rows, group.value_dim), kept))
    states = allocate_states(config, batch, dtype)
    return KVCache(tuple(k), tuple(v), jnp.zeros(batch, jnp.int32), states)


def filled(k: Rows, v: Rows, length: jax.Array) -> KVCache:
    """Make a cache of the rows `k` and `v`, of each group [L, B, T, K, D], with `length` int32 [B]
    seen rows.
    """
    k, v = jax.tree.map(lambda rows: rows.swapaxes(2, 3), (k, v))
    return KVCache(k, v, length)


class SequenceCache(flax.struct.PyTreeNode):
    """One sequence of a cache of several, for a forward of this sequence alone (B = 1).

    It is read and written where it is: a slice of it would be a copy.

    Attributes:
      k, v: of each group [L, B, K, S, D], the rows of all sequences.
      length: int32 [1], rows of this sequence.
      sequence: int32 [], which one it is.
      recurrent: states of this sequence alone, [L, 1, ...].
    """

    k: Rows
    v: Rows
    length: jax.Array
    sequence: jax.Array
    recurrent: tuple[RecurrentState, ...] = ()

    @property
    def capacity(self) -> int:
        """Return S."""
        return self.k[0].shape[3]

    def prefix(self, layer: int, first: jax.Array | None = None, group: int = 0) -> tuple:
        """Return what attention of a layer reads, as `KVCache.prefix` does.

        A layer of a sequence becomes a layer of its own: k and v are [L * B, 1, K, S, D].
        """
        found = self.k[group], self.v[group]
        batch = found[0].shape[1]
        k, v = (rows.reshape(-1, 1, *rows.shape[2:]) for rows in found)
        return k, v, layer * batch + self.sequence, self.length, first


class PartCache(flax.struct.PyTreeNode):
    """P neighbouring sequences of a cache of B, for forwards of these alone.

    They are read and written where they are, as one is in `SequenceCache`. But here the cache keeps
    its shape: XLA would copy one that loops over rounds carry and that changes its shape in them.
    Only the attention of `pallas_kernels.reference` and `pallas_kernels.attention.blocks` can read
    it.

    Attributes:
      k, v: of each group [L, B, K, S, D], the rows of all sequences.
      length: int32 [P], rows of each of these sequences.
      sequence: int32 [], the first of them.
      recurrent: states of these sequences alone, [L, P, ...].
    """

    k: Rows
    v: Rows
    length: jax.Array
    sequence: jax.Array
    recurrent: tuple[RecurrentState, ...] = ()

    @property
    def capacity(self) -> int:
        """Return S."""
        return self.k[0].shape[3]

    def prefix(self, layer: int, first: jax.Array | None = None, group: int = 0) -> tuple:
        """Return what attention of a layer reads, as `KVCache.prefix` does."""
        place = jnp.stack([jnp.asarray(layer, jnp.int32), self.sequence])
        return self.k[group], self.v[group], place, self.length, first


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

    def prefix(self, layer: int, first: jax.Array | None = None, group: int = 0) -> PackedPrefix:
        """Return what attention of a layer reads, see `jaxspec.targets.attention.attend`."""
        return PackedPrefix(self.sequences.prefix(layer, first, group), self.packing)


class PackedPrefix(NamedTuple):
    """What attention of packed rows reads; the mask is that of the rows [B, N, W] of all sequences.

    Attributes:
      whole: of the sequences, see `KVCache.prefix`.
      packing: see `PackedCache`.
    """

    whole: tuple
    packing: Packing


Cache = TypeVar("Cache", bound=KVCache | SequenceCache | PartCache)
Gathered = TypeVar("Gathered", bound=tuple)


def append(
    cache: Cache, k: Rows, v: Rows, count: jax.Array, stash: tuple[Stash, ...] = ()
) -> Cache:
    """Write new rows after each sequence's `length` and keep `count` of them.

    Args:
      k, v: of each group [L, B, T, K, D]. All T rows are written; those at or beyond `count` stay
        masked and are overwritten later, so the capacity must hold length + T rows.
      count: int32 [B], rows that become part of the sequence.
      stash: what recurrent layers computed of the same rows, of each group.
    """
    # If nothing is kept, write to the unused end. The write then depends on `count`, which the
    # decode loop computes last. A write that could run before the reads of this round would make
    # XLA copy the cache.
    start = jnp.where(count > 0, cache.length, cache.capacity - k[0].shape[2])
    first = 0 if isinstance(cache, KVCache) else cache.sequence
    write = functools.partial(_write, first=first, start=start)
    return cache.replace(
        k=jax.tree.map(write, cache.k, k),
        v=jax.tree.map(write, cache.v, v),
        length=cache.length + count,
        recurrent=tuple(
            commit(state, rows, count) for state, rows in zip(cache.recurrent, stash, strict=True)
        ),
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


def gather_path(rows: Gathered, path: jax.Array) -> Gathered:
    """Gather rows [L, B, A, ...] of each array's [L, B, N, ...] along `path` int32 [B, A]."""

    def gather(group: jax.Array) -> jax.Array:
        return jnp.take_along_axis(
            group, path.reshape(1, *path.shape, *(1,) * (group.ndim - 3)), axis=2
        )

    return jax.tree.map(gather, rows)
