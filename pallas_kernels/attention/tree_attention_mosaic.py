"""Tree attention as a Pallas kernel with Mosaic GPU lowering, for Hopper.

It uses bulk copies (TMA) and warpgroup products (WGMMA). As in `pallas_kernels.attention.tree_attention`,
each part of the grid takes a share of the live cache rows, one more part takes the tree under its
bit mask, and the same second kernel merges them. A program is one warpgroup with 64 query rows. It
requests the next blocks of keys and values while it works on one. Queries, tree and mask are small;
XLA pads and transposes them. The cache is read in place.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from pallas_kernels import versions
from pallas_kernels.attention.frame import LOWEST, differentiable, score_scale, sums
from pallas_kernels.attention.merge import merge
from pallas_kernels.device import current_device
from pallas_kernels.reference import WORD
from pallas_kernels.tuning import Problem, Tiles, mosaic_tiles


def tree_attention(
    q, k, v, positions, mask=None, prefix=None, window=None, *, interpret: bool = False
):
    """Compute `pallas_kernels.reference.tree_attention`; `prefix` must be given.

    As for the reference, rows of the cache that are not live must be finite, because they are
    multiplied by zero. The derivative is the reference's, which then also computes the value.
    """
    cut = mosaic_tiles(Problem.of(q, k, v, prefix), current_device())
    # Silence the merge's warning here too: the call below may be traced already.
    versions.triton_params(4, 1)
    return _attend(q, k, v, positions, mask, prefix, window, cut, interpret)


def interpreted(q, k, v, positions, mask=None, prefix=None, window=None):
    """Compute `tree_attention` in Mosaic GPU's interpreter (jax 0.12): slow, for tests.

    The interpreter simulates memories and barriers.
    """
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
    plgpu = versions.mosaic_gpu()
    batch, rows, heads, dim = q.shape
    kv_heads, group = k.shape[2], heads // k.shape[2]
    blocks = -(-rows * group // cut.rows)
    inputs = {
        "q": _padded(
            q.reshape(batch, rows, kv_heads, group, dim)
            .swapaxes(1, 2)
            .reshape(batch * kv_heads, -1, dim),
            cut.rows,
        ),
        "k": _padded(k.swapaxes(1, 2).reshape(batch * kv_heads, -1, dim), cut.keys),
        "v": _padded(v.swapaxes(1, 2).reshape(batch * kv_heads, -1, dim), cut.keys),
        "mask": _words(mask, batch, rows, k.shape[1], group, cut),
        "cache_k": cache_k.reshape(-1, *cache_k.shape[3:]),
        "cache_v": cache_v.reshape(-1, *cache_v.shape[3:]),
        "layer": layer.reshape(1),
        "length": length,
    }
    if first is not None:
        inputs["first"] = first
    if window is not None:
        last = positions - window
        inputs["lowest"] = last.min(axis=1)
        inputs["last"] = _padded(jnp.repeat(last, group, axis=1), cut.rows)
    block = functools.partial(versions.mosaic_tiled, dtype=q.dtype)
    out = plgpu.kernel(
        functools.partial(_kernel, names=tuple(inputs), batch=batch, kv_heads=kv_heads, cut=cut),
        out_type=sums(cut.splits + 1, batch * kv_heads, blocks * cut.rows, dim),
        scratch_types=dict(
            q_block=block((cut.rows, dim)),
            k_blocks=block((cut.stages, cut.keys, dim)),
            v_blocks=block((cut.stages, cut.keys, dim)),
            p_block=block((cut.rows, cut.keys)),
            q_here=plgpu.Barrier(),
            k_here=plgpu.Barrier(num_barriers=cut.stages),
            v_here=plgpu.Barrier(num_barriers=cut.stages),
        ),
        grid=(batch * kv_heads, cut.splits + 1, blocks),
        grid_names=("sequence", "part", "block"),
        compiler_params=plgpu.CompilerParams(approx_math=True),
        interpret=versions.mosaic_interpreter() if interpret else None,
        kernel_name="tree_attention_mosaic",
    )(*inputs.values())
    return merge(*out, q, kv_heads, cut, interpret)


_attend = differentiable(_call)


def _padded(array, multiple: int):
    """Pad axis 1 with zeros to a multiple."""
    widths = [(0, 0)] * array.ndim
    widths[1] = (0, -array.shape[1] % multiple)
    return jnp.pad(array, widths)


def _words(mask, batch: int, rows: int, keys: int, group: int, cut: Tiles):
    """Pad the mask to uint32 [B, words of whole key blocks, query rows of whole blocks].

    Padding rows and keys are zero.
    """
    if mask is None:
        bits = jnp.tri(rows, -(-keys // WORD) * WORD, dtype=jnp.uint32).reshape(1, rows, -1, WORD)
        mask = (
            (bits << jnp.arange(WORD, dtype=jnp.uint32))
            .sum(axis=-1, dtype=jnp.uint32)
            .repeat(batch, axis=0)
        )
    spare = -keys % WORD
    if spare:
        mask = mask.at[:, :, -1].set(mask[:, :, -1] & jnp.uint32((1 << WORD - spare) - 1))
    mask = _padded(mask.swapaxes(1, 2), cut.keys // WORD)
    return _padded(jnp.repeat(mask, group, axis=2).swapaxes(1, 2), cut.rows).swapaxes(1, 2)


def _kernel(*refs, names, batch: int, kv_heads: int, cut: Tiles, **scratch):
    """Handle a part of the prefix, or the tree, for a block of query rows.

    A program belongs to one kv head of one sequence.
    """
    plgpu = versions.mosaic_gpu()
    ref = dict(zip(names, refs, strict=False)) | scratch
    sequence, part, block = (lax.axis_index(name) for name in ("sequence", "part", "block"))
    at = (sequence, pl.ds(block * cut.rows, cut.rows))
    plgpu.copy_gmem_to_smem(ref["q"].at[at], ref["q_block"], ref["q_here"])
    plgpu.barrier_wait(ref["q_here"])
    out = [each.at[(part, *at)] for each in refs[len(names) :]]

    @pl.when(part < cut.splits)
    def _():
        _prefix(ref, out, sequence, part, block, batch, kv_heads, cut)

    @pl.when(part == cut.splits)
    def _():
        _tree(ref, out, sequence, block, kv_heads, cut)


def _prefix(ref, out, sequence, part, block, batch: int, kv_heads: int, cut: Tiles):
    """Attend to this part of the sequence's live cache rows."""
    plgpu = versions.mosaic_gpu()
    item, capacity = lax.div(sequence, jnp.int32(kv_heads)), ref["cache_k"].shape[1]
    first = ref["first"][item] if "first" in ref else jnp.int32(0)
    begin, end = first, jnp.minimum(first + ref["length"][item], capacity)
    shape = (cut.rows, cut.keys)
    if "last" in ref:
        begin = first + jnp.maximum(ref["lowest"][item] + 1, 0)
        rows = ref["last"].at[item, pl.ds(block * cut.rows, cut.rows)]
        last = versions.mosaic_load(rows, plgpu.Layout.WGMMA.reduce(1)) + first
    start, stop = (
        lax.div(begin, jnp.int32(cut.keys)),
        lax.div(end + (cut.keys - 1), jnp.int32(cut.keys)),
    )
    share = lax.div(jnp.maximum(stop - start, 0) + (cut.splits - 1), jnp.int32(cut.splits))
    start = start + part * share
    index = ref["layer"][0] * (batch * kv_heads) + sequence

    def seen(i):
        slot = (start + i) * cut.keys + plgpu.broadcasted_iota(
            jnp.int32, shape, 1, layout=plgpu.Layout.WGMMA
        )
        inside = (slot >= first) & (slot < end)
        return inside & (slot > lax.broadcast_in_dim(last, shape, [0])) if "last" in ref else inside

    def blocks(i):
        at = (index, pl.ds((start + i) * cut.keys, cut.keys))
        return ref["cache_k"].at[at], ref["cache_v"].at[at]

    _attention(ref, out, blocks, seen, jnp.maximum(jnp.minimum(share, stop - start), 0), cut)


def _tree(ref, out, sequence, block, kv_heads: int, cut: Tiles):
    """Attend to the rows that are not in the cache."""
    plgpu = versions.mosaic_gpu()
    shape, words = (cut.rows, cut.keys), cut.keys // WORD
    item = lax.div(sequence, jnp.int32(kv_heads))

    def word(i):
        words = ref["mask"].at[item, i, pl.ds(block * cut.rows, cut.rows)]
        return lax.broadcast_in_dim(
            versions.mosaic_load(words, plgpu.Layout.WGMMA.reduce(1)), shape, [0]
        )

    def seen(i):
        column = plgpu.broadcasted_iota(jnp.int32, shape, 1, layout=plgpu.Layout.WGMMA)
        bits = word(i * words)
        for j in range(1, words):
            bits = jnp.where(column >= j * WORD, word(i * words + j), bits)
        return (bits >> (column & (WORD - 1)).astype(jnp.uint32)) & jnp.uint32(1) != 0

    def blocks(i):
        at = (sequence, pl.ds(i * cut.keys, cut.keys))
        return ref["k"].at[at], ref["v"].at[at]

    _attention(ref, out, blocks, seen, jnp.int32(ref["k"].shape[1] // cut.keys), cut)


def _attention(ref, out, blocks, seen, count, cut: Tiles):
    """Write (total, top, weight) of `out` after `count` int32 [] blocks of keys.

    Args:
      blocks: i -> (keys, values) of block i in device memory.
      seen: i -> bool [rows, keys], which keys of block i each row sees.
    """
    plgpu = versions.mosaic_gpu()
    dim = ref["q_block"].shape[1]

    def fetch(i):
        slot = lax.rem(i, jnp.int32(cut.stages))

        @pl.when(i < count)
        def _():
            for source, name in zip(blocks(i), "kv", strict=True):
                plgpu.copy_gmem_to_smem(
                    source, ref[f"{name}_blocks"].at[slot], ref[f"{name}_here"].at[slot]
                )

    def step(i, state):
        total, top, weight = state
        slot = lax.rem(i, jnp.int32(cut.stages))
        plgpu.barrier_wait(ref["k_here"].at[slot])
        visible = seen(i)
        scores = _product(
            ref["q_block"], ref["k_blocks"].at[slot].transpose((1, 0)), (cut.rows, cut.keys)
        )
        scores = jnp.where(visible, scores * score_scale(dim), LOWEST)
        new_top = jnp.maximum(top, scores.max(axis=1))
        p = jnp.where(
            visible, jnp.exp2(scores - lax.broadcast_in_dim(new_top, scores.shape, [0])), 0.0
        )
        shrink = jnp.exp2(top - new_top)
        ref["p_block"][...] = p.astype(ref["p_block"].dtype)
        plgpu.commit_smem()
        plgpu.barrier_wait(ref["v_here"].at[slot])
        values = _product(ref["p_block"], ref["v_blocks"].at[slot], total.shape)
        total = total * lax.broadcast_in_dim(shrink, total.shape, [0]) + values
        plgpu.commit_smem()  # wait for all warps before the blocks are overwritten
        fetch(i + cut.stages)
        return total, new_top, weight * shrink + p.sum(axis=1)

    for i in range(cut.stages):
        fetch(jnp.int32(i))
    row = plgpu.Layout.WGMMA.reduce(1)
    total = plgpu.layout_cast(jnp.zeros((cut.rows, dim), jnp.float32), plgpu.Layout.WGMMA)
    top = plgpu.layout_cast(jnp.full((cut.rows,), LOWEST, jnp.float32), row)
    weight = plgpu.layout_cast(jnp.zeros((cut.rows,), jnp.float32), row)
    total, top, weight = lax.fori_loop(jnp.int32(0), count, step, (total, top, weight))
    out[1][...], out[2][...] = top, weight

    @pl.when(count > 0)  # the merge does not read parts without weight
    def _():
        out[0][...] = total


def _product(a, b, shape) -> jax.Array:
    """Multiply blocks in shared memory, summed in float32."""
    plgpu = versions.mosaic_gpu()

    def multiply(accumulator):
        plgpu.wgmma(accumulator, a, b)
        return accumulator[...]

    return pl.run_scoped(multiply, plgpu.ACC(shape, jnp.float32))
