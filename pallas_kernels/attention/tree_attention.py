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

import jax.numpy as jnp
from jax.experimental import pallas as pl

from pallas_kernels import versions
from pallas_kernels.attention.frame import Scoring, differentiable
from pallas_kernels.attention.program import Rows, launch, run_program
from pallas_kernels.device import current_device
from pallas_kernels.tuning import Problem, Tiles, tiles


def tree_attention(
    q,
    k,
    v,
    positions,
    mask=None,
    prefix=None,
    window=None,
    scale=None,
    sinks=None,
    *,
    interpret: bool = False,
):
    """Compute `pallas_kernels.reference.tree_attention`; `prefix` must be given.

    The derivative is the reference's, which then also computes the value.
    """
    cut = tiles(Problem.of(q, k, v, prefix), current_device())
    # Silence the warning here too: the call below may be traced already.
    versions.triton_params(cut.warps, cut.stages)
    scoring = Scoring(window, scale)
    return _attend(q, k, v, positions, mask, prefix, sinks, scoring, cut, interpret)


def interpreted(*args, **kwargs):
    """Compute `tree_attention` in Pallas' interpreter, on any device: slow, for tests."""
    return tree_attention(*args, **kwargs, interpret=True)


def _call(q, k, v, cache_k, cache_v, rest, *, scoring: Scoring, cut: Tiles, interpret: bool):
    layer, length, first, positions, mask, sinks = rest
    batch, rows, heads, _ = q.shape
    keys, kv_heads = k.shape[1:3]
    group = heads // kv_heads
    blocks = -(-rows * group // cut.rows)
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
    windowed = scoring.window is not None
    further = {"first": first, "mask": mask, "positions": positions if windowed else None}
    inputs |= {name: (array, one(array)) for name, array in further.items() if array is not None}
    if sinks is not None:
        inputs["sinks"] = sinks, pl.BlockSpec(sinks.shape, lambda part, block, z: (0,))
    sizes = dict(rows=rows, keys=keys, group=group, kv_heads=kv_heads, scoring=scoring, cut=cut)
    kernel, grid = functools.partial(_kernel, **sizes), (blocks, batch * kv_heads)
    padded = blocks * cut.rows
    return launch("tree_attention", kernel, inputs, grid, padded, kv_heads, cut, interpret)


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


_attend = differentiable(_call)


def _kernel(
    *refs, names, rows: int, keys: int, group: int, kv_heads: int, scoring: Scoring, cut: Tiles
):
    """Handle a part of the prefix, the tree, or both, for a block of query rows.

    A program belongs to one kv head of one sequence.
    """
    ref, out = dict(zip(names, refs, strict=False)), refs[len(names) :]
    part, block, head = pl.program_id(0), pl.program_id(1), pl.program_id(2) % kv_heads
    own = Rows((), block * cut.rows, rows, 0, jnp.int32(keys), ref["length"][...])
    run_program(ref, out, own, part, head, group=group, scoring=scoring, cut=cut)
