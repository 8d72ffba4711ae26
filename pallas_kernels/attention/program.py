"""The program of the Triton attention kernels: some query rows of a sequence, a part of its keys.

`tree_attention` runs it on blocks of the rows of every sequence, `packed_attention` on tiles of
rows that lie packed. It keeps a running maximum and sum (online softmax, base 2). Query heads that
share a kv head are rows of the same block, so each key is read once.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from pallas_kernels import versions
from pallas_kernels.attention.frame import Scoring
from pallas_kernels.attention.merge import load_rows, merge, store_rows
from pallas_kernels.tuning import LEAST_STEPS, TREE_KEYS, Tiles

# A number below every score, finite so that differences are not NaN.
LOWEST = -1e30


class Rows(NamedTuple):
    """The rows that a program handles, and those of their sequence.

    Attributes:
      sequence: (index of the sequence in the cache and the mask,), or () if the program's blocks of
        them hold one sequence.
      start: the first query row: row t * group + g is row t of q and head g of those that share a
        kv head.
      end: row of q after the last one.
      begin, count: the sequence's first row in k, and number of rows.
      length: live rows of its cache.
    """

    sequence: tuple
    start: Any
    end: Any
    begin: Any
    count: Any
    length: Any


def run_program(
    ref: dict[str, Any],
    out,
    rows: Rows,
    part,
    head,
    *,
    group: int,
    scoring: Scoring,
    cut: Tiles,
) -> None:
    """Handle a part of the prefix, the new rows, or both, for the query rows of one kv head.

    Args:
      ref: q [T, H, D]; k, v [R, D]; cache_k, cache_v [L, S, D], or [L, B, S, D] if `rows.sequence`
        is given, like mask [T, W] or [B, N, W]; layer; positions [T] for a window; maybe first, and
        sinks [H].
      out: the result [T, H, D] alone, or the partial sums of this part, see `launch`.
      part: which part; `cut.splits` is that of the new rows, unless one program takes all.
      head: the kv head.
    """
    row = rows.start + jnp.arange(cut.rows, dtype=jnp.int32)
    node, live = row // group, row < rows.end * group
    q = load_rows(ref["q"], row, head, rows.end, group)
    scale = math.log2(math.e) * scoring.scale_of(q.shape[-1])  # for a softmax in base 2

    mine = part == cut.splits if cut.splits > 1 else True
    state = (jnp.zeros(q.shape, jnp.float32), *_begin(ref, row, live, head, group, mine))
    last = None
    if scoring.window is not None:
        last = (
            triton.load(ref["positions"].at[node], mask=live, other=jnp.iinfo(jnp.int32).max)
            - scoring.window
        )
    state = _prefix(ref, rows, q, scale, state, last, part, cut)
    last_node = (rows.start + (cut.rows - 1)) // group - rows.begin
    total, top, weight = _tree(ref, rows, q, scale, state, node - rows.begin, live, mine, last_node)

    if len(out) == 1:
        total = total / jnp.where(weight != 0, weight, 1.0)[:, None]
        store_rows(out[0], total, row, head, rows.end, group)
        return
    # The merge does not read parts without weight: a part beyond the live rows costs no traffic. A
    # weight that is NaN counts, so that the result is NaN too.
    own = pl.ds(rows.start, cut.rows)
    triton.store(out[0].at[own, :], total, mask=(live & (weight != 0))[:, None])
    triton.store(out[1].at[own], top, mask=live)
    triton.store(out[2].at[own], weight, mask=live)


def _begin(ref, row, live, head, group: int, mine):
    """Return the first maxima and weights: those of the rows' sinks in the part of the new rows."""
    none = jnp.full(row.shape, LOWEST, jnp.float32), jnp.zeros(row.shape, jnp.float32)
    if "sinks" not in ref:
        return none
    sink = triton.load(ref["sinks"].at[head * group + row % group], mask=live, other=0.0)
    top = sink.astype(jnp.float32) * math.log2(math.e)
    begun = top, jnp.ones(row.shape, jnp.float32)
    return tuple(jnp.where(mine, one, other) for one, other in zip(begun, none, strict=True))


def launch(
    name: str,
    kernel: Callable[..., None],
    inputs: dict[str, tuple[jax.Array, pl.BlockSpec]],
    grid: tuple[int, int],
    rows: int,
    kv_heads: int,
    cut: Tiles,
    interpret: bool,
) -> jax.Array:
    """Run a kernel over parts of the keys, and merge the parts if there are several.

    Args:
      name: of the kernel.
      kernel: takes references to the inputs, then to the results, and `names`, those of the inputs.
      inputs: arrays by name, with the block of each; `q` is among them, and the result is like it.
      grid: (blocks of rows, sequences times kv heads), behind the number of parts.
      rows: query rows, padded.
    """
    (q, own), (blocks, sequences), parts = inputs["q"], grid, cut.splits + (cut.splits > 1)
    shapes, specs = ([jax.ShapeDtypeStruct(q.shape, q.dtype)], [own])
    if parts > 1:
        shapes, specs = _describe_sums(parts, q.shape[0] * kv_heads, rows, q.shape[-1])
    out = pl.pallas_call(
        functools.partial(kernel, names=tuple(inputs)),
        grid=(parts, blocks, sequences),
        in_specs=[spec for _, spec in inputs.values()],
        out_specs=specs,
        out_shape=shapes,
        compiler_params=versions.triton_params(cut.warps, cut.stages),
        interpret=interpret,
        name=name,
    )(*(array for array, _ in inputs.values()))
    return out[0] if parts == 1 else merge(*out, q, kv_heads, cut, interpret)


def _describe_sums(parts: int, sequences: int, rows: int, dim: int):
    """Make shapes and blocks of the partial sums of `rows` query rows, which `merge` takes.

    The grid is (parts, blocks of rows, sequences); a program addresses its rows itself.
    """
    row = pl.BlockSpec((None, None, rows), lambda part, block, z: (part, z, 0))
    totals = pl.BlockSpec((None, None, rows, dim), lambda part, block, z: (part, z, 0, 0))
    one = jax.ShapeDtypeStruct((parts, sequences, rows), jnp.float32)
    total = jax.ShapeDtypeStruct((*one.shape, dim), jnp.float32)
    return [total, one, one], [totals, row, row]


def _prefix(ref, rows: Rows, q, scale, state, last, part, cut: Tiles):
    """Update `state` with this part of the sequence's live cache rows.

    A row sees positions above `last` int32 [rows], or all positions if it is None.
    """
    layer, sequence = ref["layer"][...], rows.sequence
    first = ref["first"][sequence or ...] if "first" in ref else jnp.int32(0)
    begin, capacity = first, ref["cache_k"].shape[-2]
    end = jnp.minimum(first + rows.length, capacity)
    if last is not None:
        begin = first + jnp.maximum(jnp.min(last) + 1, 0)
    start, stop = begin // cut.keys, pl.cdiv(end, cut.keys)
    steps = jnp.maximum(stop - start, 0)
    share = pl.cdiv(steps, cut.splits)
    if cut.per_core > 1:
        # Fewer, longer parts as long as they are short: the merge reads each one that has rows.
        longer = pl.cdiv(steps, max(cut.splits // cut.per_core, 1))
        share = jnp.maximum(share, jnp.minimum(longer, LEAST_STEPS))
    start = start + part * share

    def step(i, state):
        slot = i * cut.keys + jnp.arange(cut.keys, dtype=jnp.int32)
        inside = (slot >= first) & (slot < end)
        at = (layer, *sequence, pl.ds(i * cut.keys, cut.keys), slice(None))
        k = triton.load(ref["cache_k"].at[at], mask=inside[:, None], other=0.0).astype(q.dtype)
        v = triton.load(ref["cache_v"].at[at], mask=inside[:, None], other=0.0).astype(q.dtype)
        seen = inside[None, :]
        if last is not None:
            seen = seen & ((slot - first)[None, :] > last[:, None])
        return _online(q, k, v, seen, scale, state)

    return lax.fori_loop(start, jnp.minimum(start + share, stop), step, state)


def _tree(ref, rows: Rows, q, scale, state, node, live, mine, last_node):
    """Update `state` with the rows that are not in the cache, if they are this program's (`mine`).

    A step takes one word of the mask. Without a mask, the rows after `last_node` are left out, the
    last one that a query of this program sees.
    """
    steps = (rows.count + (TREE_KEYS - 1)) // TREE_KEYS
    if "mask" not in ref:
        steps = jnp.minimum(steps, last_node // TREE_KEYS + 1)

    def step(i, state):
        column = i * TREE_KEYS + jnp.arange(TREE_KEYS, dtype=jnp.int32)
        inside = column < rows.count
        at = (pl.ds(rows.begin + i * TREE_KEYS, TREE_KEYS), slice(None))
        k = triton.load(ref["k"].at[at], mask=inside[:, None], other=0.0)
        v = triton.load(ref["v"].at[at], mask=inside[:, None], other=0.0)
        if "mask" in ref:
            at = (*rows.sequence, node, i)
            word = triton.load(ref["mask"].at[at], mask=live, other=jnp.uint32(0))
            bit = jnp.arange(TREE_KEYS, dtype=jnp.uint32)
            seen = ((word[:, None] >> bit[None, :]) & jnp.uint32(1)) != 0
        else:
            seen = column[None, :] <= node[:, None]
        return _online(q, k, v, seen & inside[None, :], scale, state)

    return lax.fori_loop(jnp.int32(0), jnp.where(mine, steps, 0), step, state)


def _online(q, k, v, seen, scale, state):
    """Add a block of keys and values to the online softmax (base 2).

    The state is (total [M, D], top [M], weight [M]).
    """
    total, top, weight = state
    scores = jnp.where(seen, _dot(q, k, 1) * scale, LOWEST)
    new_top = jnp.maximum(top, jnp.max(scores, axis=1))
    shrink = jnp.exp2(top - new_top)
    p = jnp.where(seen, jnp.exp2(scores - new_top[:, None]), 0.0)
    total = total * shrink[:, None] + _dot(p.astype(v.dtype), v, 0)
    return total, new_top, weight * shrink + jnp.sum(p, axis=1)


def _dot(a, b, axis: int):
    """Multiply `a` [M, X] by axis `axis` of `b`, summed in float32, without rounding to TF32."""
    precision = lax.Precision.HIGHEST if a.dtype == jnp.float32 else None
    return lax.dot_general(
        a, b, (((1,), (axis,)), ((), ())), precision=precision, preferred_element_type=jnp.float32
    )
