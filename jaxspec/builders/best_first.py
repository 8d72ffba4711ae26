"""The best-first tree (DDTree): the N - 1 most probable prefixes of a product of per-depth marginals, built level by level.

A heap would pop one node at a time. Here each level is built at once from the one above. With M = N - 1 nodes wanted, a node
can only be among them if few enough others are certain to come first: the child of rank r (from 0) of the i-th best node of a
level comes at or after i * (r + 1) nodes of its own level and i of its parent's, so that the i-th best parent needs at most
M // i - 1 children and only M // 2 parents need any. All index arithmetic is static.

Order: by cost (exact, see `scores`), equal costs by rank path, lexicographically, a prefix before its extensions. That is the
order of DDTree's heap (liranringel/ddtree, `build_ddtree_tree`), whose M excludes the root as here.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.builders.scores import NEVER, Cost, add, from_logprob, to_logprob
from jaxspec.state import Tree
from jaxspec.tree import assemble, parent_rows


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
    depths, width = logprob.shape
    nodes = _grow(from_logprob(logprob, depth_limit), rows - 1)
    order, cost, _ = _best(nodes.cost, nodes.path, rows)
    index = nodes.index[order]
    return assemble(
        token=token.reshape(-1)[index].at[0].set(root),
        parent=parent_rows(order, nodes.parent[order]),
        depth=(index // width + 1).at[0].set(0),
        logprob=to_logprob(cost),
        size=jnp.sum(cost.hi != NEVER, dtype=jnp.int32),
        max_depth=min(depths, rows - 1),
    )


def _grow(steps: Cost, budget: int) -> _Nodes:
    """Every node that may be among the best: the root, its children, then the best of each level; ids number them so."""
    depths, width = steps.hi.shape
    codes = _PathCodes(budget, depths)
    zero, first = np.zeros(1, np.int32), np.arange(min(width, budget), dtype=np.int32)
    root_path, root_free = tuple(jnp.zeros(1, jnp.uint32) for _ in range(codes.words)), jnp.full(1, codes.bits)
    root = _Nodes(Cost(jnp.zeros(1, jnp.uint32), jnp.zeros(1, jnp.uint32)), root_path, jnp.asarray(zero - 1), jnp.asarray(zero))
    # The root's children come ranked.
    path, free = codes.append(root_path, root_free, 0 * first, first)
    children = _Nodes(Cost(steps.hi[0, first], steps.lo[0, first]), path, jnp.asarray(0 * first), jnp.asarray(first))
    if budget < 2 or depths < 2:
        return jax.tree.map(lambda *x: jnp.concatenate(x), root, children)
    parents = budget // 2
    counts = [min(budget // i - 1, width) for i in range(1, parents + 1)]
    parent = np.repeat(np.arange(parents, dtype=np.int32), counts)
    rank = np.concatenate([np.arange(n, dtype=np.int32) for n in counts])
    keep = min(len(rank), budget - 1)

    def descend(above, step: Cost):
        """The best nodes of the next level; `parent` is their parent's position in the level above."""
        cost, path, free = above
        path, free = codes.append(path, free, parent, rank)
        choice, cost, path = _best(add(cost.at(parent), step.at(rank)), path, keep)
        nodes = _Nodes(cost, path, jnp.asarray(parent)[choice], jnp.asarray(rank)[choice])
        top = jax.tree.map(lambda x: x[:parents], (cost, path))
        return (*top, free[choice[:parents]]), nodes

    missing = max(parents - len(first), 0)
    pad = [jnp.pad(x[:parents], (0, missing), constant_values=NEVER) for x in (children.cost.hi, children.cost.lo, *path)]
    top = (Cost(*pad[:2]), tuple(pad[2:]), jnp.pad(free[:parents], (0, missing)))
    _, deeper = jax.lax.scan(descend, top, Cost(steps.hi[1:], steps.lo[1:]))
    level = np.arange(depths - 1, dtype=np.int32)[:, None]
    start = np.where(level == 0, 1, 1 + len(first) + (level - 1) * keep).astype(np.int32)  # id of the first node above
    deeper = deeper._replace(parent=deeper.parent + start, index=deeper.index + (level + 1) * width)
    return jax.tree.map(lambda a, b, c: jnp.concatenate([a, b, c.reshape(-1)]), root, children, deeper)


def _best(cost: Cost, path: tuple[jax.Array, ...], keep: int) -> tuple[jax.Array, Cost, tuple[jax.Array, ...]]:
    """Positions, costs and paths of the best `keep` nodes, in order; equal paths (prefix, extension) by position."""
    keys = (*cost, *path, jnp.arange(cost.hi.shape[0], dtype=jnp.int32))
    hi, lo, *path, position = (x[:keep] for x in jax.lax.sort(keys, num_keys=len(keys), is_stable=False))
    return position, Cost(hi, lo), tuple(path)


class _PathCodes:
    """Rank paths packed into words whose order is the lexicographic order of the paths.

    A rank r is written as n = r + 1 in an order-preserving Elias gamma code: with b the bits of n, b - 1 ones, a zero and the
    low b - 1 bits of n. The ranks of a node among the best M have a product of n of at most M (every node of smaller or equal
    ranks comes before it), so that a path of D ranks takes at most D + 2 log2 M bits: one word for M = 255 at depth 15, where
    fields of fixed width would take four. A prefix packs like its extension by ranks 0.
    """

    def __init__(self, budget: int, depth: int):
        self.bits = depth + 2 * max(budget.bit_length() - 1, 0)
        self.words = -(-self.bits // 32)

    def append(self, path, free, parent: np.ndarray, rank: np.ndarray) -> tuple[tuple[jax.Array, ...], jax.Array]:
        """Words of the children `(parent, rank)` of nodes with `path` words and `free` bits left, and the bits they leave."""
        low_bits = np.array([int(r + 1).bit_length() - 1 for r in rank], np.int64)
        code = (((1 << low_bits) - 1) << (low_bits + 1)) | (rank + 1 - (1 << low_bits))
        # Unusable nodes break the bound on the length; their path is never looked at.
        free = jnp.maximum(free[parent] - (2 * low_bits + 1).astype(np.int32), 0)
        shifts = [free - 32 * (self.words - 1 - k) for k in range(self.words)]
        code = jnp.asarray(code.astype(np.uint32))
        return tuple(w[parent] | _shift(code, by) for w, by in zip(path, shifts, strict=True)), free


def _shift(code: jax.Array, by: jax.Array) -> jax.Array:
    """`code` (uint32) shifted left by `by` bits, or right where negative; 0 where nothing is left of it."""
    left = code << jnp.clip(by, 0, 31).astype(jnp.uint32)
    right = code >> jnp.clip(-by, 0, 31).astype(jnp.uint32)
    return jnp.where(jnp.abs(by) > 31, jnp.uint32(0), jnp.where(by >= 0, left, right))
