"""Grow trees level by level, each level at once; `best_first` and `beam` share this.

In both, a level descends from the best few nodes of the level above. The child of rank r (from 0)
of the i-th best of them can only be kept if r is small, because it comes after the children of
ranks up to r of the i - 1 better ones. So the (parent, rank) pairs that can matter are known before
any score, and all index arithmetic is static.

Nodes are ordered by cost (exact, see `scores`), equal costs lexicographically by rank path, a
prefix before its extensions. This only needs costs that are non-negative and do not decrease with
the rank.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.builders.scores import NEVER, Cost, add
from pallas_kernels.smallest import find_kernel


class LevelNodes(NamedTuple):
    """Nodes of one tree.

    Attributes:
      cost: costs of their paths.
      path: packed rank paths (uint32 words).
      parent: ids of their parents.
      index: flat indices into the candidates [D * C].
    """

    cost: Cost
    path: tuple[jax.Array, ...]
    parent: jax.Array
    index: jax.Array


def grow_levels(steps: Cost, first: int, counts: Sequence[int], keep: int, most: int) -> LevelNodes:
    """Return the root, its children, then the best nodes of every level; ids follow this order.

    Args:
      steps: costs [D, C] of the candidates.
      first: number of the root's children.
      counts: number of children of the i-th best node of a level; nodes that are not listed get
        none.
      keep: number of best nodes kept, in order, of every level below the first.
      most: upper bound on the product of (rank + 1) along the path of a usable node that is kept.
    """
    depths, width = steps.hi.shape
    codes = _PathCodes(most, depths)
    zero, first = np.zeros(1, np.int32), np.arange(first, dtype=np.int32)
    root_path, root_free = (
        tuple(jnp.zeros(1, jnp.uint32) for _ in range(codes.words)),
        jnp.full(1, codes.bits),
    )
    root = LevelNodes(
        Cost(jnp.zeros(1, jnp.uint32), jnp.zeros(1, jnp.uint32)),
        root_path,
        jnp.asarray(zero - 1),
        jnp.asarray(zero),
    )
    # The root's children are already ranked.
    path, free = codes.append(root_path, root_free, 0 * first, first)
    children = LevelNodes(
        Cost(steps.hi[0, first], steps.lo[0, first]),
        path,
        jnp.asarray(0 * first),
        jnp.asarray(first),
    )
    if not counts or depths < 2:
        return jax.tree.map(lambda *x: jnp.concatenate(x), root, children)
    parents = len(counts)
    parent = np.repeat(np.arange(parents, dtype=np.int32), counts)
    rank = np.concatenate([np.arange(n, dtype=np.int32) for n in counts])
    keep = min(len(rank), keep)

    def descend(above, step: Cost):
        """Choose the best nodes of the next level.

        Their `parent` is the parent's position in the level above.
        """
        cost, path, free = above
        path, free = codes.append(path, free, parent, rank)
        choice, cost, path, free = choose_best(
            add(cost.at(parent), step.at(rank)), path, keep, free
        )
        nodes = LevelNodes(cost, path, jnp.asarray(parent)[choice], jnp.asarray(rank)[choice])
        return _top(cost, path, free, parents), nodes

    def levels(unroll, above, steps):
        return jax.lax.scan(descend, above, steps, unroll=unroll)[1]

    # On a GPU, a loop splits the round's command buffer and is driven by the host, which costs more
    # than a level; so the loop is unrolled. On a CPU, unrolling would only slow the compilation.
    deeper = jax.lax.platform_dependent(
        _top(children.cost, path, free, parents),
        Cost(steps.hi[1:], steps.lo[1:]),
        cpu=functools.partial(levels, 1),
        default=functools.partial(levels, True),
    )
    level = np.arange(depths - 1, dtype=np.int32)[:, None]
    start = np.where(level == 0, 1, 1 + len(first) + (level - 1) * keep).astype(
        np.int32
    )  # id of the first node above
    deeper = deeper._replace(parent=deeper.parent + start, index=deeper.index + (level + 1) * width)
    return jax.tree.map(
        lambda a, b, c: jnp.concatenate([a, b, c.reshape(-1)]), root, children, deeper
    )


def _top(cost: Cost, path: tuple[jax.Array, ...], free: jax.Array, count: int):
    """Return the first `count` nodes of a level, padded with unusable ones."""
    missing = max(count - cost.hi.shape[0], 0)
    hi, lo, *path = (
        jnp.pad(x[:count], (0, missing), constant_values=NEVER) for x in (*cost, *path)
    )
    return Cost(hi, lo), tuple(path), jnp.pad(free[:count], (0, missing))


def choose_best(cost: Cost, path: tuple[jax.Array, ...], keep: int, *others: jax.Array):
    """Choose the best `keep` nodes: return their positions, costs, paths and `others`, in order.

    Nodes whose paths are packed alike (a prefix and its extension) are ordered by position.
    """
    count, kernel = 2 + len(path), find_kernel()
    if kernel is not None:
        choose = functools.partial(_by_kernel, kernel, count=count, keep=keep)
    else:
        choose = functools.partial(
            jax.lax.platform_dependent,
            cpu=functools.partial(_by_sorting, count=count, keep=keep),
            default=functools.partial(_by_counting, count=count, keep=keep),
        )
    position, hi, lo, *rest = choose(*cost, *path, *others)
    return position, Cost(hi, lo), tuple(rest[: len(path)]), *rest[len(path) :]


def _by_sorting(*arrays: jax.Array, count: int, keep: int) -> tuple[jax.Array, ...]:
    """Choose the `keep` smallest of M: return their positions and `arrays` [M], in order.

    The first `count` arrays are the keys, compared in turn.
    """
    position = jnp.arange(arrays[0].shape[0], dtype=jnp.int32)
    *keys, chosen = jax.lax.sort((*arrays[:count], position), num_keys=count + 1, is_stable=False)
    chosen = chosen[:keep]
    return chosen, *(key[:keep] for key in keys), *(other[chosen] for other in arrays[count:])


def _by_kernel(
    kernel: Callable, *arrays: jax.Array, count: int, keep: int
) -> tuple[jax.Array, ...]:
    """Do what `_by_sorting` does in one kernel, see `pallas_kernels.smallest`."""
    stacked = jnp.stack([x.astype(jnp.uint32) for x in arrays])
    *chosen, where = kernel(stacked, count, keep)
    return where.astype(jnp.int32), *(
        one.astype(x.dtype) for one, x in zip(chosen, arrays, strict=True)
    )


def _by_counting(*arrays: jax.Array, count: int, keep: int) -> tuple[jax.Array, ...]:
    """Do what `_by_sorting` does by comparing all with all.

    This needs only reductions; a GPU's sort is one long chain of steps in one block. The arrays are
    stacked, which takes fewer kernels than an array for each. The chosen entries are summed out of
    a mask, because XLA would fuse an index with the choices of the levels before.
    """
    position = jnp.arange(arrays[0].shape[0], dtype=jnp.int32)
    stacked = jnp.stack([x.astype(jnp.uint32) for x in (*arrays, position)])
    # Otherwise XLA computes them again for every comparison, in a kernel of its own.
    stacked = jax.lax.optimization_barrier(stacked)
    place = precede(*stacked[:count]).sum(1, dtype=jnp.int32) == jnp.arange(keep)[:, None]
    *chosen, where = jnp.where(place, stacked[:, None], 0).sum(2, dtype=jnp.uint32)
    return where.astype(jnp.int32), *(
        one.astype(x.dtype) for one, x in zip(chosen, arrays, strict=True)
    )


def precede(*keys: jax.Array) -> jax.Array:
    """Compare M entries with each other by keys [M] in turn, equal ones by position.

    Returns:
      bool [M, M], whether entry j comes before entry i; row sums are the places in sorted order.
    """
    position = jnp.arange(keys[0].shape[0], dtype=jnp.int32)
    before = position < position[:, None]
    for key in reversed(keys):
        before = (key < key[:, None]) | ((key == key[:, None]) & before)
    return before


class _PathCodes:
    """Rank paths packed into words that sort in the lexicographic order of the paths.

    A rank r is written as n = r + 1 in an order-preserving Elias gamma code: if n has b bits, write
    b - 1 ones, a zero and the low b - 1 bits of n. If the product of all n of a path is at most M,
    a path of D ranks takes at most D + 2 log2 M bits: one word for M = 255 at depth 15, while
    fields of fixed width would take four. A prefix is packed like its extension by ranks 0.
    """

    def __init__(self, most: int, depth: int):
        self.bits = depth + 2 * max(most.bit_length() - 1, 0)
        self.words = -(-self.bits // 32)

    def append(
        self, path, free, parent: np.ndarray, rank: np.ndarray
    ) -> tuple[tuple[jax.Array, ...], jax.Array]:
        """Append ranks to paths.

        Args:
          path: words of the nodes above.
          free: bits that they leave free.
          parent, rank: of each child, the position of its parent above and its rank.

        Returns:
          Words of the children, and the bits that they leave free.
        """
        low_bits = np.array([int(r + 1).bit_length() - 1 for r in rank], np.int64)
        code = (((1 << low_bits) - 1) << (low_bits + 1)) | (rank + 1 - (1 << low_bits))
        # Unusable nodes may exceed the bound on the length; their path is never read.
        free = jnp.maximum(free[parent] - (2 * low_bits + 1).astype(np.int32), 0)
        shifts = [free - 32 * (self.words - 1 - k) for k in range(self.words)]
        code = jnp.asarray(code.astype(np.uint32))
        return tuple(w[parent] | _shift(code, by) for w, by in zip(path, shifts, strict=True)), free


def _shift(code: jax.Array, by: jax.Array) -> jax.Array:
    """Shift `code` (uint32) left by `by` bits, or right if `by` is negative; 0 beyond 31 bits."""
    left = code << jnp.clip(by, 0, 31).astype(jnp.uint32)
    right = code >> jnp.clip(-by, 0, 31).astype(jnp.uint32)
    return jnp.where(jnp.abs(by) > 31, jnp.uint32(0), jnp.where(by >= 0, left, right))
