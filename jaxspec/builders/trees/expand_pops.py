"""Pop the nodes of an expansion tree one at a time, as JetSpec's code does (`expand`)."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.builders.scores import NEVER, Cost, add


class Expanded(NamedTuple):
    """A tree in order of expansion.

    Attributes:
      cost: cost [N] of the path.
      parent: int32 [N], row of the parent.
      index: int32 [N], flat index of the candidate.
      depth: int32 [N].
      size: int32 [], rows in use.
    """

    cost: Cost
    parent: jax.Array
    index: jax.Array
    depth: jax.Array
    size: jax.Array


def count_children(counts: jax.Array, depth: jax.Array, rank: jax.Array) -> jax.Array:
    """Look up numbers of children in `counts`, by depth [D + 1] or by depth and rank [D + 1, K]."""
    return counts[depth] if counts.ndim == 1 else counts[depth, rank]


def expand_pops(steps: Cost, counts: jax.Array, rows: int) -> Expanded:
    """Expand the best nodes until the tree has `rows` rows.

    Args:
      steps: costs [D, K] of the candidates.
      counts: int32 [D + 1] or [D + 1, K], children of a node by depth, or by depth and rank.
      rows: N, root included; static.
    """

    def unfinished(carry: tuple[Expanded, jax.Array]) -> jax.Array:
        return (carry[0].size < rows) & _expandable(*carry, counts).any()

    def pop(carry: tuple[Expanded, jax.Array]) -> tuple[Expanded, jax.Array]:
        return _expand_best(*carry, steps, counts)

    zeros = jnp.zeros(rows, jnp.int32)
    cost = Cost(zeros.astype(jnp.uint32), zeros.astype(jnp.uint32))
    root = Expanded(cost, zeros - 1, zeros, zeros, jnp.int32(1))
    return jax.lax.while_loop(unfinished, pop, (root, zeros.astype(bool)))[0]


def _expandable(tree: Expanded, closed: jax.Array, counts: jax.Array) -> jax.Array:
    """Whether each row has children that it was not given yet; `closed` bool [N] rows have them."""
    live = jnp.arange(tree.parent.shape[0]) < tree.size
    return live & ~closed & (_count(counts, tree.depth, tree.index) > 0)


def _count(counts: jax.Array, depth: jax.Array, index: jax.Array) -> jax.Array:
    return count_children(counts, depth, index % counts.shape[-1])


def _expand_best(
    tree: Expanded, closed: jax.Array, steps: Cost, counts: jax.Array
) -> tuple[Expanded, jax.Array]:
    """Pop the cheapest expandable node and append as many of its children as fit.

    Among equals the earliest is popped.
    """
    row = jnp.arange(tree.parent.shape[0], dtype=jnp.int32)
    best, cost = _cheapest(_expandable(tree, closed, counts), tree.cost, row)
    depth = tree.depth[best]
    # If nothing is expandable, an arbitrary row is chosen and must add no children.
    count = jnp.where(cost.hi == NEVER, 0, _count(counts, depth, tree.index[best]))
    rank = row - tree.size
    new = (rank >= 0) & (rank < count)
    rank = jnp.clip(rank, 0, steps.hi.shape[1] - 1)
    at = jnp.minimum(depth, steps.hi.shape[0] - 1)
    child = add(cost, Cost(steps.hi[at, rank], steps.lo[at, rank]))
    grown = Expanded(
        Cost(jnp.where(new, child.hi, tree.cost.hi), jnp.where(new, child.lo, tree.cost.lo)),
        jnp.where(new, best, tree.parent),
        jnp.where(new, at * steps.hi.shape[1] + rank, tree.index),
        jnp.where(new, depth + 1, tree.depth),
        jnp.minimum(tree.size + count, row.shape[0]),
    )
    return grown, closed | (row == best)


def _cheapest(eligible: jax.Array, cost: Cost, row: jax.Array) -> tuple[jax.Array, Cost]:
    """Return the eligible row that is least by (cost, row), and its cost.

    The cost is `NEVER` if no row is eligible.
    """

    def least(a, b):
        before = (a[0] < b[0]) | (
            (a[0] == b[0]) & ((a[1] < b[1]) | ((a[1] == b[1]) & (a[2] < b[2])))
        )
        return tuple(jnp.where(before, x, y) for x, y in zip(a, b, strict=True))

    operands = (jnp.where(eligible, cost.hi, NEVER), cost.lo, row)
    hi, lo, best = jax.lax.reduce(operands, (NEVER, NEVER, np.int32(row.shape[0] - 1)), least, (0,))
    return best, Cost(hi, lo)
