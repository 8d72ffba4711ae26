"""Trees grown level by level, every level at once: what `best_first` and `beam` share.

In both a level descends from the best few nodes of the level above, and the child of rank r (from
0) of the i-th best of them can only be kept if r is small: it comes after the children of ranks up
to r of the i - 1 better ones. Which (parent, rank) pairs can matter is therefore known before any
score is, and all index arithmetic is static.

Order: by cost (exact, see `scores`), equal costs by rank path, lexicographically, a prefix before
its extensions. All of it needs costs that are non-negative and do not decrease with the rank;
nothing else is assumed of them.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.builders.scores import NEVER, Cost, add


class LevelNodes(NamedTuple):
    """Nodes of one tree: cost, packed rank path (uint32 words), id of the parent, flat index [D *
    C] of the candidate.
    """

    cost: Cost
    path: tuple[jax.Array, ...]
    parent: jax.Array
    index: jax.Array


def grow_levels(steps: Cost, first: int, counts: Sequence[int], keep: int, most: int) -> LevelNodes:
    """The root, its children, then the best nodes of every level; ids number them so.

    Args:
      steps: costs [D, C] of the candidates.
      first: children of the root.
      counts: children of the i-th best node of a level; the nodes after the last listed one get
        none.
      keep: nodes kept of every level below the first, the best ones, in order.
      most: bound on the product of the (rank + 1) along the path of a usable node that is kept.
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
    # The root's children come ranked.
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
        """The best nodes of the next level; `parent` is their parent's position in the level
        above.
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

    # On a GPU a loop splits the round's command buffer and is driven by the host, at more than a
    # level costs; a CPU would only take longer to compile.
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
    """The first `count` nodes of a level, filled up with unusable ones."""
    missing = max(count - cost.hi.shape[0], 0)
    hi, lo, *path = (
        jnp.pad(x[:count], (0, missing), constant_values=NEVER) for x in (*cost, *path)
    )
    return Cost(hi, lo), tuple(path), jnp.pad(free[:count], (0, missing))


def choose_best(cost: Cost, path: tuple[jax.Array, ...], keep: int, *others: jax.Array):
    """Positions, costs, paths and `others` of the best `keep` nodes, in order; equal paths (prefix,
    extension) by position.
    """
    choose = functools.partial(
        jax.lax.platform_dependent,
        cpu=functools.partial(_by_sorting, count=2 + len(path), keep=keep),
        default=functools.partial(_by_counting, count=2 + len(path), keep=keep),
    )
    position, hi, lo, *rest = choose(*cost, *path, *others)
    return position, Cost(hi, lo), tuple(rest[: len(path)]), *rest[len(path) :]


def _by_sorting(*arrays: jax.Array, count: int, keep: int) -> tuple[jax.Array, ...]:
    """The `keep` smallest of M in order: positions, then `arrays` [M], the first `count` of which
    are compared in turn.
    """
    position = jnp.arange(arrays[0].shape[0], dtype=jnp.int32)
    *keys, chosen = jax.lax.sort((*arrays[:count], position), num_keys=count + 1, is_stable=False)
    chosen = chosen[:keep]
    return chosen, *(key[:keep] for key in keys), *(other[chosen] for other in arrays[count:])


def _by_counting(*arrays: jax.Array, count: int, keep: int) -> tuple[jax.Array, ...]:
    """`_by_sorting` by comparing all with all: reductions, where a GPU's sort is one long chain of
    steps in one block.

    What is chosen is summed out of a mask: XLA would fuse an index with what the levels before it
    were chosen by.
    """
    position = jnp.arange(arrays[0].shape[0], dtype=jnp.int32)
    before = position < position[:, None]
    for key in reversed(arrays[:count]):
        before = (key < key[:, None]) | ((key == key[:, None]) & before)
    place = before.sum(1, dtype=jnp.int32) == jnp.arange(keep)[:, None]
    return tuple(jnp.where(place, x, 0).sum(1, dtype=x.dtype) for x in (position, *arrays))


class _PathCodes:
    """Rank paths packed into words whose order is the lexicographic order of the paths.

    A rank r is written as n = r + 1 in an order-preserving Elias gamma code: with b the bits of n,
    b - 1 ones, a zero and the low b - 1 bits of n. Where the product of the n of a path is at most
    M, a path of D ranks takes at most D + 2 log2 M bits: one word for M = 255 at depth 15, where
    fields of fixed width would take four. A prefix packs like its extension by ranks 0.
    """

    def __init__(self, most: int, depth: int):
        self.bits = depth + 2 * max(most.bit_length() - 1, 0)
        self.words = -(-self.bits // 32)

    def append(
        self, path, free, parent: np.ndarray, rank: np.ndarray
    ) -> tuple[tuple[jax.Array, ...], jax.Array]:
        """Words of the children `(parent, rank)` of nodes with `path` words and `free` bits left,
        and the bits they leave.
        """
        low_bits = np.array([int(r + 1).bit_length() - 1 for r in rank], np.int64)
        code = (((1 << low_bits) - 1) << (low_bits + 1)) | (rank + 1 - (1 << low_bits))
        # Unusable nodes break the bound on the length; their path is never looked at.
        free = jnp.maximum(free[parent] - (2 * low_bits + 1).astype(np.int32), 0)
        shifts = [free - 32 * (self.words - 1 - k) for k in range(self.words)]
        code = jnp.asarray(code.astype(np.uint32))
        return tuple(w[parent] | _shift(code, by) for w, by in zip(path, shifts, strict=True)), free


def _shift(code: jax.Array, by: jax.Array) -> jax.Array:
    """`code` (uint32) shifted left by `by` bits, or right where negative; 0 where nothing is left
    of it.
    """
    left = code << jnp.clip(by, 0, 31).astype(jnp.uint32)
    right = code >> jnp.clip(-by, 0, 31).astype(jnp.uint32)
    return jnp.where(jnp.abs(by) > 31, jnp.uint32(0), jnp.where(by >= 0, left, right))
