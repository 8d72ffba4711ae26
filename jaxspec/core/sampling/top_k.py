"""Exact top-k of a vocabulary, much faster than a sort or one pass over it by a single block.

The k largest entries lie in the k groups of neighbours with the largest maxima: every other group
has k groups before it, and the maximum of each of them comes before all of its entries. So the
search goes on among k groups. Equal entries are ordered by their index, and so are groups.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxspec.core.split_vocabulary import find_best

# XLA's kernel on GPUs takes at most 16 entries of a row, with one block of threads a row. For more
# entries XLA sorts the whole row.
_KERNEL_COUNT, _KERNEL_ROW = 16, 2**14
# Pairs of entries that one kernel may compare.
_PAIRS = 2**27


def top_k(x: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """Compute `jax.lax.top_k` of long rows in groups; of a shared vocabulary, on each device first.

    Args:
      x: float [..., N] without NaN.
      k: at most N.

    Returns:
      The k largest values [..., k] and their indices int32 [..., k], largest first; the lower index
      first among equals, also among entries of -inf.
    """
    return find_best(x, k, _search_here)


def _search_here(x: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """Compute `top_k` on one device."""
    place = jax.lax.platform_dependent(
        x, cpu=functools.partial(_places_on_cpu, k=k), default=functools.partial(_places, k=k)
    )
    return jnp.take_along_axis(x, place, axis=-1), place


def _places_on_cpu(x: jax.Array, k: int) -> jax.Array:
    """Find the k largest entries in groups if the row is long; below, one library call is faster."""
    return _search(x, k, max(2**13, 128 * k), _library)


def _places(x: jax.Array, k: int) -> jax.Array:
    """Find the k largest entries by counting, which is a few small kernels on a GPU."""
    if k <= _KERNEL_COUNT and x.shape[-1] <= _KERNEL_ROW:
        return jax.lax.top_k(x, k)[1]
    longest = math.isqrt(_PAIRS // max(1, math.prod(x.shape[:-1])))
    return _search(x, k, max(longest, 8 * k), _count)


def _search(
    x: jax.Array, k: int, longest: int, select: Callable, index: jax.Array | None = None
) -> jax.Array:
    """Find the k largest entries of x [..., N]; `select` finds those of rows of up to `longest`.

    Args:
      index: int32 [..., N], by which equal entries are ordered, consecutive within a group of
        neighbours; None: by position.

    Returns:
      Their positions int32 [..., k], largest entry first.
    """
    count = x.shape[-1]
    if count <= longest:
        return select(x, index, k)
    # Both searches, among all groups and in the best k, then have about the same length.
    size = 1 << max(1, round(math.log2(count / k) / 2))
    groups = -(-count // size)
    pad = [(0, 0)] * (x.ndim - 1) + [(0, groups * size - count)]
    grouped = jnp.pad(x, pad, constant_values=-jnp.inf).reshape(*x.shape[:-1], groups, size)
    firsts = None if index is None else index[..., ::size]
    best = _search(grouped.max(-1), k, longest, select, firsts)
    if select is _library:
        best = jnp.sort(best, axis=-1)
    inside = jnp.take_along_axis(grouped, best[..., None], axis=-2, mode="clip")
    start = best if firsts is None else jnp.take_along_axis(firsts, best, axis=-1, mode="clip")
    scale = size if firsts is None else 1
    inner = start[..., None] * scale + jnp.arange(size, dtype=jnp.int32)
    flat = (*x.shape[:-1], k * size)
    place = _search(inside.reshape(flat), k, longest, select, inner.reshape(flat))
    return jnp.take_along_axis(best, place // size, axis=-1, mode="clip") * size + place % size


def _library(x: jax.Array, index: jax.Array | None, k: int) -> jax.Array:
    """Find the k largest entries by a library call, which orders equal ones by position."""
    return jax.lax.top_k(x, k)[1]


def _count(x: jax.Array, index: jax.Array | None, k: int) -> jax.Array:
    """Find the k largest entries of short rows: an entry's rank is the number of those before it.

    Equal ones are compared by index, so that no kernel has to sort the groups they come from.
    """
    position = jnp.arange(x.shape[-1], dtype=jnp.int32)
    index = position if index is None else index
    entry, other = x[..., :, None], x[..., None, :]
    earlier = index[..., None, :] < index[..., :, None]
    rank = ((other > entry) | ((other == entry) & earlier)).sum(-1, dtype=jnp.int32)
    return jnp.where(rank[..., None, :] == jnp.arange(k)[:, None], position, 0).max(-1)
