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

# XLA's kernel on GPUs takes at most 16 entries of a row, with one block of threads a row. For more
# entries XLA sorts the whole row.
_KERNEL_COUNT, _KERNEL_ROW = 16, 2**14
# Pairs of entries that one kernel may compare.
_PAIRS = 2**27


def top_k(x: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """Compute `jax.lax.top_k` of long rows in groups.

    Args:
      x: float [..., N] without NaN.
      k: at most N.

    Returns:
      The k largest values [..., k] and their indices int32 [..., k], largest first; the lower index
      first among equals, also among entries of -inf.
    """
    place = jax.lax.platform_dependent(
        x, cpu=functools.partial(_places_on_cpu, k=k), default=functools.partial(_places, k=k)
    )
    return jnp.take_along_axis(x, place, axis=-1), place


def _places_on_cpu(x: jax.Array, k: int) -> jax.Array:
    """Find the k largest entries in groups if the row is long; below, one library call is faster."""
    return _search(x, k, max(2**13, 128 * k), lambda x, k: jax.lax.top_k(x, k)[1])


def _places(x: jax.Array, k: int) -> jax.Array:
    """Find the k largest entries by counting, which is a few small kernels on a GPU."""
    if k <= _KERNEL_COUNT and x.shape[-1] <= _KERNEL_ROW:
        return jax.lax.top_k(x, k)[1]
    longest = math.isqrt(_PAIRS // max(1, math.prod(x.shape[:-1])))
    return _search(x, k, max(longest, 8 * k), _count)


def _search(
    x: jax.Array, k: int, longest: int, select: Callable[[jax.Array, int], jax.Array]
) -> jax.Array:
    """Find the k largest entries of x [..., N]; `select` finds those of rows of up to `longest`.

    Returns:
      Their indices int32 [..., k], largest entry first.
    """
    count = x.shape[-1]
    if count <= longest:
        return select(x, k)
    # Both searches, among all groups and in the best k, then have about the same length.
    size = 1 << max(1, round(math.log2(count / k) / 2))
    groups = -(-count // size)
    pad = [(0, 0)] * (x.ndim - 1) + [(0, groups * size - count)]
    grouped = jnp.pad(x, pad, constant_values=-jnp.inf).reshape(*x.shape[:-1], groups, size)
    best = jnp.sort(_search(grouped.max(-1), k, longest, select), axis=-1)
    inside = jnp.take_along_axis(grouped, best[..., None], axis=-2, mode="clip")
    place = _search(inside.reshape(*x.shape[:-1], k * size), k, longest, select)
    return jnp.take_along_axis(best, place // size, axis=-1, mode="clip") * size + place % size


def _count(x: jax.Array, k: int) -> jax.Array:
    """Find the k largest entries of short rows: an entry's rank is the number of those before it."""
    index = jnp.arange(x.shape[-1], dtype=jnp.int32)
    entry, other = x[..., :, None], x[..., None, :]
    before = (other > entry) | ((other == entry) & (index < index[:, None]))
    rank = before.sum(-1, dtype=jnp.int32)
    return jnp.where(rank[..., None, :] == jnp.arange(k)[:, None], index, 0).max(-1)
