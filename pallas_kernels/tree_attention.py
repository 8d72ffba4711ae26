"""Tree attention as a Pallas kernel with Triton lowering.

It computes attention of new rows over a long cached prefix and over each other. The new rows are a
tree or a chunk of a prompt. A tree gives a GPU too little to do, so programs share the prefix. Each
takes a part of the live rows in blocks and keeps a running maximum and sum (online softmax, base
2). One more program takes the tree under its bit mask, and a second kernel merges the parts. Query
heads that share a kv head are rows of the same block, so each key is read once. If there are enough
rows to keep the device busy, as in a chunk of a prompt, one program handles both prefix and new
rows, and nothing is merged.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from pallas_kernels import versions
from pallas_kernels.device import current_device
from pallas_kernels.frame import LOWEST, differentiable, score_scale, sums
from pallas_kernels.merge import load_rows, merge, store_rows
from pallas_kernels.tuning import TREE_KEYS, Problem, Tiles, tiles


def tree_attention(
    q, k, v, positions, mask=None, prefix=None, window=None, *, interpret: bool = False
):
    """Compute `pallas_kernels.reference.tree_attention`; `prefix` must be given.

    The derivative is the reference's, which then also computes the value.
    """
    cut = tiles(Problem.of(q, k, v, prefix), current_device())
    # Silence the warning here too: the call below may be traced already.
    versions.triton_params(cut.warps, cut.stages)
    return _attend(q, k, v, positions, mask, prefix, window, cut, interpret)


def interpreted(q, k, v, positions, mask=None, prefix=None, window=None):
    """Compute `tree_attention` in Pallas' interpreter, on any device: slow, for tests."""
    return tree_attention(q, k, v, positions, mask, prefix, window, interpret=True)


def _call(
    q,
    k,
    v,
    cache_k,
    cache_v,
    layer,
    length,
    first,
    positions,
    mask,
    *,
    window,
    cut: Tiles,
    interpret: bool,
):
    batch, rows, heads, _ = q.shape
    keys, kv_heads = k.shape[1:3]
    group = heads // kv_heads
    blocks, parts = -(-rows * group // cut.rows), cut.splits + (cut.splits > 1)
    one = functools.partial(_one_sequence, kv_heads=kv_heads)
    inputs = {
        "q": (q, one(q)),
        "cache_k": (cache_k, one(cache_k, batch=1, head=2)),
        "cache_v": (cache_v, one(cache_v, batch=1, head=2)),
        "layer": (layer, pl.BlockSpec((), lambda part, block, z: ())),
        "length": (length, one(length)),
        "k": (k, one(k, head=2)),
        "v": (v, one(v, head=2)),
    }
    further = {"first": first, "mask": mask, "positions": positions if window is not None else None}
    inputs |= {name: (array, one(array)) for name, array in further.items() if array is not None}
    kernel = functools.partial(
        _kernel,
        names=tuple(inputs),
        rows=rows,
        keys=keys,
        group=group,
        kv_heads=kv_heads,
        window=window,
        cut=cut,
    )
    shapes, specs = (
        ([q], [one(q)]) if parts == 1 else _sums(parts, batch * kv_heads, blocks, q.shape[-1], cut)
    )
    out = pl.pallas_call(
        kernel,
        grid=(parts, blocks, batch * kv_heads),
        in_specs=[spec for _, spec in inputs.values()],
        out_specs=specs,
        out_shape=[jax.ShapeDtypeStruct(shape.shape, shape.dtype) for shape in shapes],
        compiler_params=versions.triton_params(cut.warps, cut.stages),
        interpret=interpret,
        name="tree_attention",
    )(*(array for array, _ in inputs.values()))
    return out[0] if parts == 1 else merge(*out, q, kv_heads, cut, interpret)


def _one_sequence(array, batch: int = 0, head: int | None = None, *, kv_heads: int):
    """Make the block of one sequence (and kv head, if `head` is its axis).

    The kernel addresses the rows inside.
    """

    def index(part, block, z):
        at = {batch: z // kv_heads, head: z % kv_heads}
        return tuple(at.get(axis, 0) for axis in range(array.ndim))

    return pl.BlockSpec(
        tuple(None if axis in (batch, head) else size for axis, size in enumerate(array.shape)),
        index,
    )


def _sums(parts: int, sequences: int, blocks: int, dim: int, cut: Tiles):
    """Make shapes and blocks of the partial sums; see `pallas_kernels.merge.merge`."""
    spec = pl.BlockSpec((None, None, cut.rows), lambda part, block, z: (part, z, block))
    totals = pl.BlockSpec((None, None, cut.rows, dim), lambda part, block, z: (part, z, block, 0))
    return sums(parts, sequences, blocks * cut.rows, dim), [totals, spec, spec]


_attend = differentiable(_call)


def _kernel(
    *refs, names, rows: int, keys: int, group: int, kv_heads: int, window: int | None, cut: Tiles
):
    """Handle a part of the prefix, the tree, or both, for a block of query rows.

    A program belongs to one kv head of one sequence.
    """
    ref, out = dict(zip(names, refs, strict=False)), refs[len(names) :]
    part, block, head = pl.program_id(0), pl.program_id(1), pl.program_id(2) % kv_heads
    row = block * cut.rows + jnp.arange(cut.rows, dtype=jnp.int32)
    node, live = row // group, row < rows * group
    q = load_rows(ref["q"], row, head, rows, group)
    scale = score_scale(q.shape[-1])

    state = (
        jnp.zeros(q.shape, jnp.float32),
        jnp.full(row.shape, LOWEST, jnp.float32),
        jnp.zeros(row.shape, jnp.float32),
    )
    last = None
    if window is not None:
        last = (
            triton.load(ref["positions"].at[node], mask=live, other=jnp.iinfo(jnp.int32).max)
            - window
        )
    state = _prefix(ref, q, scale, state, last, part, cut)
    mine = part == cut.splits if cut.splits > 1 else True
    last_node = (block * cut.rows + (cut.rows - 1)) // group
    total, top, weight = _tree(ref, q, scale, state, node, live, keys, mine, last_node)

    if len(out) == 1:
        total = total / jnp.where(weight > 0, weight, 1.0)[:, None]
        store_rows(out[0], total, row, head, rows, group)
        return
    # The merge does not read parts without weight: a part beyond the live rows costs no traffic.
    triton.store(out[0].at[:, :], total, mask=(weight > 0)[:, None])
    out[1][...], out[2][...] = top, weight


def _prefix(ref, q, scale, state, last, part, cut: Tiles):
    """Update `state` with this part of the sequence's live cache rows.

    A row sees positions above `last` int32 [rows], or all positions if it is None.
    """
    layer, first = ref["layer"][...], ref["first"][...] if "first" in ref else jnp.int32(0)
    begin, capacity = first, ref["cache_k"].shape[1]
    end = jnp.minimum(first + ref["length"][...], capacity)
    if last is not None:
        begin = first + jnp.maximum(jnp.min(last) + 1, 0)
    start, stop = begin // cut.keys, pl.cdiv(end, cut.keys)
    share = pl.cdiv(jnp.maximum(stop - start, 0), cut.splits)
    start = start + part * share

    def step(i, state):
        slot = i * cut.keys + jnp.arange(cut.keys, dtype=jnp.int32)
        inside = (slot >= first) & (slot < end)
        at = (layer, pl.ds(i * cut.keys, cut.keys), slice(None))
        k = triton.load(ref["cache_k"].at[at], mask=inside[:, None], other=0.0)
        v = triton.load(ref["cache_v"].at[at], mask=inside[:, None], other=0.0)
        seen = inside[None, :]
        if last is not None:
            seen = seen & ((slot - first)[None, :] > last[:, None])
        return _online(q, k, v, seen, scale, state)

    return lax.fori_loop(start, jnp.minimum(start + share, stop), step, state)


def _tree(ref, q, scale, state, node, live, keys: int, mine, last_node):
    """Update `state` with the rows that are not in the cache, if they are this program's (`mine`).

    A step takes one word of the mask. Without a mask, the rows after `last_node` are left out, the
    last one that a query of this program sees.
    """
    count = jnp.int32(-(-keys // TREE_KEYS))
    if "mask" not in ref:
        count = jnp.minimum(count, last_node // TREE_KEYS + 1)

    def step(i, state):
        column = i * TREE_KEYS + jnp.arange(TREE_KEYS, dtype=jnp.int32)
        inside = column < keys
        at = (pl.ds(i * TREE_KEYS, TREE_KEYS), slice(None))
        k = triton.load(ref["k"].at[at], mask=inside[:, None], other=0.0)
        v = triton.load(ref["v"].at[at], mask=inside[:, None], other=0.0)
        if "mask" in ref:
            word = triton.load(ref["mask"].at[node, i], mask=live, other=jnp.uint32(0))
            bit = jnp.arange(TREE_KEYS, dtype=jnp.uint32)
            seen = ((word[:, None] >> bit[None, :]) & jnp.uint32(1)) != 0
        else:
            seen = column[None, :] <= node[:, None]
        return _online(q, k, v, seen & inside[None, :], scale, state)

    return lax.fori_loop(jnp.int32(0), jnp.where(mine, count, 0), step, state)


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
