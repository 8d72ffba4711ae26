"""Choose the smallest of a few hundred entries, in order: one Pallas kernel with Triton lowering.

Every entry counts the entries before it, which is its place, and writes itself there. XLA makes
three kernels of this: a table of all comparisons, its sums, and a selection.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from pallas_kernels import versions
from pallas_kernels.registry import find_triton

_WARPS, _STAGES = 4, 1
_ENTRIES, _OTHERS = 16, 256  # entries per program, and entries that a step compares them with


def find_kernel() -> Callable | None:
    """Return `choose_smallest`, see `registry.find_triton`."""
    return find_triton(choose_smallest)


def choose_smallest(
    stacked: jax.Array, count: int, keep: int, *, interpret: bool = False
) -> jax.Array:
    """Choose the `keep` smallest of M entries.

    Args:
      stacked: uint32 [n, M]; row j is the j-th field of every entry.
      count: number of leading fields that entries are compared by, in turn; equal entries are
        ordered by position.
      keep: at most M.

    Returns:
      uint32 [n + 1, keep]: the fields of the chosen entries, smallest first, and their positions.
    """
    # Silence the warning here too: the call below may be traced already.
    versions.triton_params(_WARPS, _STAGES)
    return _call(stacked, count=count, keep=keep, interpret=interpret)


@functools.partial(jax.jit, static_argnames=("count", "keep", "interpret"))
def _call(stacked, *, count, keep, interpret):
    return pl.pallas_call(
        functools.partial(_kernel, count=count),
        grid=(-(-stacked.shape[1] // _ENTRIES),),
        out_shape=jax.ShapeDtypeStruct((stacked.shape[0] + 1, keep), jnp.uint32),
        compiler_params=versions.triton_params(_WARPS, _STAGES),
        interpret=interpret,
        name="choose_smallest",
    )(stacked)


def _kernel(stacked, chosen, *, count: int):
    """Place a block of entries."""
    (fields, total), keep = stacked.shape, chosen.shape[1]
    entry = pl.program_id(0) * _ENTRIES + jnp.arange(_ENTRIES, dtype=jnp.int32)
    keys = [_load(stacked, i, entry, total) for i in range(count)]

    def add(step, place):
        other = step * _OTHERS + jnp.arange(_OTHERS, dtype=jnp.int32)
        before = other[None, :] < entry[:, None]
        for i in reversed(range(count)):
            key, mine = _load(stacked, i, other, total)[None, :], keys[i][:, None]
            before = (key < mine) | ((key == mine) & before)
        before = before & (other < total)[None, :]
        return place + jnp.sum(before.astype(jnp.int32), axis=1)

    steps, zero = jnp.int32(-(-total // _OTHERS)), jnp.zeros(_ENTRIES, jnp.int32)
    place = jax.lax.fori_loop(jnp.int32(0), steps, add, zero)
    kept = (entry < total) & (place < keep)
    # Others keep a place out of range: the interpreter would otherwise overwrite an entry.
    place = jnp.where(kept, place, keep)
    rows = [_load(stacked, i, entry, total) for i in range(fields)]
    for i, value in enumerate([*rows, entry.astype(jnp.uint32)]):
        triton.store(chosen.at[jnp.full(place.shape, i, jnp.int32), place], value, mask=kept)


def _load(stacked, field: int, entry: jax.Array, total: int) -> jax.Array:
    at = jnp.full(entry.shape, field, jnp.int32), entry
    return triton.load(stacked.at[at], mask=entry < total, other=0)
