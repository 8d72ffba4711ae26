"""Attention of packed rows: some rows of every sequence, side by side, as many as each has.

The Triton kernel takes the rows as they lie, with a table of row tiles. A tile is a few consecutive
rows of one sequence; a program handles one tile, one kv head and a part of the sequence's prefix,
as in `pallas_kernels.attention.tree_attention`. So its work grows with the rows, not with the most
rows that a sequence may have. Tiles of one sequence each read its prefix, at about the same time:
all but the first find it in the L2 cache. Where no such kernel runs, the rows are laid out by
sequence, padded, and packed again.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from pallas_kernels import versions
from pallas_kernels.attention.frame import Scoring
from pallas_kernels.attention.program import Rows, launch, run_program
from pallas_kernels.device import current_device
from pallas_kernels.registry import resolve_kernel
from pallas_kernels.tuning import Problem, Tiles, packed_tiles


def by_sequence(
    q, k, v, positions, mask, prefix, packing, window=None, scale=None, sinks=None
) -> jax.Array:
    """Compute attention of packed rows, laid out by sequence, with `pallas_kernels.reference` or
    another implementation of `tree_attention` that the registry chooses.

    Args:
      q: [1, R, H, D], after RoPE, not scaled.
      k, v: [1, R, K, D], keys and values of the same rows.
      positions: int32 [1, R], absolute positions; only read for `window`.
      mask: uint32 [B, N, W]; bit j of row i is set if row i of a sequence sees its row j.
      prefix: (cache_k, cache_v [L, B, K, S, D], layer, length int32 [B], first int32 [B] or None),
        see `pallas_kernels.reference.tree_attention`.
      packing: (slot int32 [R], the sequence of each row; row int32 [R], its number there; place
        int32 [B, N], the packed row of each row of a sequence; count int32 [B], rows of each
        sequence). Rows of a sequence are consecutive and in order, as the sequences are; those
        after the last are padding, R in all.
      window, scale, sinks: see `pallas_kernels.reference.tree_attention`.

    Returns:
      [1, R, H, D] in q's dtype; zeros for rows that see nothing, anything for padding.
    """
    slot, row, place, _ = packing
    laid_out = [x[0][place] for x in (q, k, v, positions)]
    attend = resolve_kernel("tree_attention", Problem.of(*laid_out[:3], prefix))
    given = {"window": window, "scale": scale, "sinks": sinks}
    out = attend(*laid_out, mask=mask, prefix=prefix, **given)
    return out[slot, row][None]


def packed_attention(
    q,
    k,
    v,
    positions,
    mask,
    prefix,
    packing,
    window=None,
    scale=None,
    sinks=None,
    *,
    interpret: bool = False,
) -> jax.Array:
    """Compute `by_sequence` of rows as they lie; padding gives zeros. It has no derivative."""
    cache_k, cache_v, layer, length, first = prefix
    rows, group, sequences = q.shape[1], q.shape[2] // k.shape[2], length.shape[0]
    cut = packed_tiles(Problem.of(q, k, v, prefix), current_device(), sequences)
    # All layers make the same table, of which XLA keeps one (common subexpressions).
    table = tile_rows(packing[-1], length, rows, cut.rows // group)
    # Silence the warning here too: the call below may be traced already.
    versions.triton_params(cut.warps, cut.stages)
    layer = jnp.asarray(layer, jnp.int32)
    rest, scoring = (layer, first, positions, mask, table, sinks), Scoring(window, scale)
    return _call(q, k, v, cache_k, cache_v, rest, scoring=scoring, cut=cut, interpret=interpret)


def interpreted(*args, **kwargs) -> jax.Array:
    """Compute `packed_attention` in Pallas' interpreter, on any device: slow, for tests."""
    return packed_attention(*args, **kwargs, interpret=True)


@functools.partial(jax.jit, static_argnums=(2, 3))
def tile_rows(count: jax.Array, length: jax.Array, rows: int, most: int) -> jax.Array:
    """Divide packed rows into tiles of consecutive rows of one sequence.

    Padding makes tiles too, of rows that see nothing.

    Args:
      count: int32 [B], rows of each sequence, `rows` or fewer in all.
      length: int32 [B], live rows of each sequence's cache.
      rows: R.
      most: most rows of a tile.

    Returns:
      int32 [tiles, 6]: sequence, first row, end, the sequence's first row, number of its rows, its
      live rows. Tiles that are left over have no rows and no live rows.
    """
    sequences = count.shape[0] + 1
    nothing = jnp.zeros(1, jnp.int32)
    own = jnp.concatenate([count, rows - count.sum(keepdims=True)])
    seen, live = (jnp.concatenate([given, nothing]) for given in (count, length))
    # Sums under a mask need one kernel; a cumulative sum needs several.
    earlier = jnp.tri(sequences, k=-1, dtype=jnp.int32)
    tiles = -(-own // most)
    begin, before = (jnp.sum(earlier * each, axis=1) for each in (own, tiles))
    tile = jnp.arange(most_tiles(rows, count.shape[0], most), dtype=jnp.int32)
    sequence = jnp.sum(tile[:, None] >= (before + tiles), axis=1, dtype=jnp.int32)
    left_over, sequence = sequence == sequences, jnp.minimum(sequence, sequences - 1)
    first = begin[sequence] + (tile - before[sequence]) * most
    end = jnp.minimum(first + most, begin[sequence] + own[sequence])
    found = (first, end, begin[sequence], seen[sequence], live[sequence])
    found = (jnp.where(left_over, 0, each) for each in found)
    return jnp.stack([jnp.minimum(sequence, sequences - 2), *found], axis=1)


def most_tiles(rows: int, sequences: int, most: int) -> int:
    """Compute the most tiles of up to `most` rows that `rows` of `sequences` and padding can need."""
    begun = min(rows, sequences + 1)
    return begun + (rows - begun) // most


@functools.partial(jax.jit, static_argnames=("scoring", "cut", "interpret"))
def _call(q, k, v, cache_k, cache_v, rest, *, scoring: Scoring, cut: Tiles, interpret: bool):
    layer, first, positions, mask, table, sinks = rest
    (rows, heads), kv_heads = q.shape[1:3], k.shape[2]
    group = heads // kv_heads
    inputs = {
        "q": (q, _block(q, first=True)),
        "cache_k": (cache_k, _block(cache_k, head=2)),
        "cache_v": (cache_v, _block(cache_v, head=2)),
        "layer": (layer, _block(layer)),
        "k": (k, _block(k, head=2, first=True)),
        "v": (v, _block(v, head=2, first=True)),
        "mask": (mask, _block(mask)),
        "tiles": (table, _block(table)),
    }
    if first is not None:
        inputs["first"] = first, _block(first)
    if scoring.window is not None:
        inputs["positions"] = positions, _block(positions, first=True)
    if sinks is not None:
        inputs["sinks"] = sinks, _block(sinks)
    padded = -(-rows * group // cut.rows) * cut.rows
    kernel = functools.partial(_kernel, group=group, scoring=scoring, cut=cut)
    grid = table.shape[0], kv_heads
    return launch("packed_attention", kernel, inputs, grid, padded, kv_heads, cut, interpret)


def _block(array, head: int | None = None, first: bool = False) -> pl.BlockSpec:
    """Make the block of all of an array, or of a kv head if `head` is its axis.

    With `first`, the first axis has one entry, and is left out.
    """

    def index(part, tile, z):
        return tuple(z if axis == head else 0 for axis in range(array.ndim))

    left_out = ({0} if first else set()) | {head}
    sizes = (None if axis in left_out else size for axis, size in enumerate(array.shape))
    return pl.BlockSpec(tuple(sizes), index)


def _kernel(*refs, names, group: int, scoring: Scoring, cut: Tiles):
    """Handle a tile with a part of the prefix, with the new rows, or with both, for one kv head."""
    ref, out = dict(zip(names, refs, strict=False)), refs[len(names) :]
    part, tile, head = (pl.program_id(axis) for axis in range(3))
    sequence, start, end, begin, count, length = (ref["tiles"][tile, i] for i in range(6))
    own = Rows((sequence,), start * group, end, begin, count, length)
    run_program(ref, out, own, part, head, group=group, scoring=scoring, cut=cut)
