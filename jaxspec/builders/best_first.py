"""The best-first tree (DDTree): the N - 1 most probable prefixes of a product of per-depth marginals, built level by level.

A heap would pop one node at a time. Here every level is built at once: with M = N - 1 nodes wanted, a node can only be among
them if few enough others are certain to come first. The child of rank r (from 0) of the i-th best node of a level has
i * (r + 1) nodes of its own level at or before it, i of its parent's level and one of each level above, so that the i-th
best parent at depth d - 1 needs at most (M - d + 2) // i - 1 children. All index arithmetic is static.

Order: by cost (exact, see `scores`), equal costs by rank path, lexicographically, a prefix before its extensions. That is the
order of DDTree's heap (liranringel/ddtree, `build_ddtree_tree`), whose M excludes the root.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.builders.scores import NEVER, Cost, add, from_logprob, to_logprob
from jaxspec.state import Tree
from jaxspec.tree import assemble, parent_rows


class _Level(NamedTuple):
    """Static plan of one level: children to look at, as (index of the parent in the level above, rank), and how many to keep."""

    parent: np.ndarray
    rank: np.ndarray
    keep: int


def plan_levels(nodes: int, depth: int, candidates: int) -> tuple[_Level, ...]:
    """Levels 1..depth of a tree of `nodes` nodes (root excluded) over `candidates` ranked tokens a depth."""
    levels, kept = [], 1
    for d in range(1, depth + 1):
        room = [nodes if d == 1 else (nodes - d + 2) // i - 1 for i in range(1, kept + 1)]
        counts = [max(min(n, candidates), 0) for n in room]
        parent = np.repeat(np.arange(kept), counts)
        rank = np.concatenate([np.arange(n) for n in counts])
        kept = min(len(parent), nodes - d + 1)
        if kept <= 0:
            break
        levels.append(_Level(parent.astype(np.int32), rank.astype(np.int32), kept))
    return tuple(levels)


class _Nodes(NamedTuple):
    """Nodes of one tree: cost, packed rank path (uint32 words), id of the parent, flat index [D * C] of the candidate."""

    cost: Cost
    path: tuple[jax.Array, ...]
    parent: jax.Array
    index: jax.Array


def best_first(token: jax.Array, logprob: jax.Array, root: jax.Array, depth_limit: jax.Array, rows: int) -> Tree:
    """Build one tree (no batch axis).

    Args:
      token, logprob: int32 and float32 [D, C], ranked candidates per depth; C >= min(rows - 1, vocabulary).
      root: int32 [], token of row 0.
      depth_limit: int32 [], deepest node allowed.
      rows: N, root included; static.
    """
    width = logprob.shape[1]
    plan = plan_levels(rows - 1, *logprob.shape)
    nodes = jax.tree.map(lambda *x: jnp.concatenate(x), *_grow(plan, from_logprob(logprob, depth_limit), rows - 1))
    order, cost, _ = _sort(nodes, rows)
    index = nodes.index[order]
    return assemble(
        token=token.reshape(-1)[index].at[0].set(root),
        parent=parent_rows(order, nodes.parent[order]),
        depth=(index // width + 1).at[0].set(0),
        logprob=to_logprob(cost),
        size=jnp.sum(cost.hi != NEVER, dtype=jnp.int32),
        max_depth=len(plan),
    )


def _grow(plan: tuple[_Level, ...], steps: Cost, budget: int) -> list[_Nodes]:
    """The kept nodes of every level, the root's first; ids number them in this order."""
    codes = _PathCodes(budget, len(plan))
    zero, ones = jnp.zeros(1, jnp.uint32), jnp.ones(1, jnp.int32)
    levels, free, first = [_Nodes(Cost(zero, zero), (zero,) * codes.words, -ones, 0 * ones)], codes.bits * ones, 0
    for d, level in enumerate(plan):
        above = levels[-1]
        cost = add(above.cost.at(level.parent), Cost(steps.hi[d, level.rank], steps.lo[d, level.rank]))
        path, free = codes.extend(above.path, free, level)
        width = steps.hi.shape[1]
        nodes = _Nodes(cost, path, jnp.asarray(level.parent + first), jnp.asarray(level.rank + d * width))
        first += above.index.shape[0]
        if d > 0:  # the root's children come sorted
            order, cost, path = _sort(nodes, level.keep)
            nodes, free = _Nodes(cost, path, nodes.parent[order], nodes.index[order]), free[order]
        levels.append(nodes)
    return levels


def _sort(nodes: _Nodes, keep: int) -> tuple[jax.Array, Cost, tuple[jax.Array, ...]]:
    """Positions, costs and paths of the best `keep` nodes, in order; stable, so that a prefix stays before its extensions."""
    keys = (*nodes.cost, *nodes.path)
    position = jnp.arange(nodes.index.shape[0], dtype=jnp.int32)
    hi, lo, *path, order = (x[:keep] for x in jax.lax.sort((*keys, position), num_keys=len(keys)))
    return order, Cost(hi, lo), tuple(path)


class _PathCodes:
    """Rank paths packed into words whose order is the lexicographic order of the paths.

    A rank r is written as n = r + 1 in an order-preserving Elias gamma code: with b the bits of n, b - 1 ones, a zero and the
    low b - 1 bits of n. The ranks of a node among the best M have a product of n of at most M (every node of smaller or equal
    ranks comes before it), so that a path of D ranks takes at most D + 2 log2 M bits: one word for M = 255 at depth 15, where
    fields of fixed width would take four. A prefix and its extension by ranks 0 pack equally; a stable sort decides.
    """

    def __init__(self, budget: int, depth: int):
        self.bits = depth + 2 * max(budget.bit_length() - 1, 0)
        self.words = max(-(-self.bits // 32), 1)

    def extend(self, path, free, level: _Level) -> tuple[tuple[jax.Array, ...], jax.Array]:
        """Append one rank to the parents' paths: words of the children, and how many bits each has left."""
        n = level.rank.astype(np.int64) + 1
        low_bits = np.floor(np.log2(n)).astype(np.int64)
        code = (((1 << low_bits) - 1) << (low_bits + 1)) | (n - (1 << low_bits))
        code = jnp.asarray(code.astype(np.uint32))
        # Unusable nodes break the bound on the length; their path is never looked at.
        free = jnp.maximum(free[level.parent] - (2 * low_bits + 1).astype(np.int32), 0)
        offsets = [free + 32 * (k + 1) - 32 * self.words for k in range(self.words)]
        return tuple(w[level.parent] | _shift(code, by) for w, by in zip(path, offsets, strict=True)), free


def _shift(code: jax.Array, by: jax.Array) -> jax.Array:
    """`code` (uint32) shifted left by `by` bits, or right where negative; 0 where nothing is left of it."""
    left = code << jnp.clip(by, 0, 31).astype(jnp.uint32)
    right = code >> jnp.clip(-by, 0, 31).astype(jnp.uint32)
    return jnp.where(jnp.abs(by) > 31, jnp.uint32(0), jnp.where(by >= 0, left, right))
