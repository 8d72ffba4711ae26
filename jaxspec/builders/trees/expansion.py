"""Pop the nodes of an expansion tree (`expand`) and append their children, in either of two ways.

`expand_pops` pops one node at a time, as JetSpec's code does. No child is cheaper than its parent,
so nodes are popped in the order of (cost, insertion): of two equal nodes, the one whose parent was
popped first, then the better rank. `expand_levels` merges that order level by level, in a number of
steps known before. On a GPU, a loop that the data end splits the round's command buffer and is
driven by the host.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.builders.scores import NEVER, Cost, add
from jaxspec.builders.trees.levels import precede


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


# Fields of a node, uint32, in one array, which takes fewer kernels than an array for each.
# HI, LO: its cost, `NEVER` where there is no node. SEAT: position of its parent times K, plus its
# rank. PLACE: its own position, in the order in which nodes are popped.
_HI, _LO, _SEAT, _DEPTH, _PLACE = range(5)


def expand_levels(steps: Cost, counts: jax.Array, rows: int) -> Expanded:
    """Expand the best nodes until the tree has `rows` rows.

    Args:
      steps: costs [D, K] of the candidates.
      counts: int32 [D + 1] or [D + 1, K], children of a node by depth, or by depth and rank.
      rows: N, root included; static.
    """
    depths, width = steps.hi.shape
    # Every popped node adds a row or more, and so does every parent that its level popped before.
    size, keep = max(rows - 1, 1), max((rows - 1) // 2, 1)
    parent, rank = _pairs(keep, width, counts.ndim == 2)
    most = counts if counts.ndim == 1 else counts.max(1)  # 0 where all nodes of a depth are leaves

    def descend(above, level):
        """Merge the children of the nodes of one depth into the popped nodes."""
        popped, above = above
        depth, step, counts, below = level
        count = counts if counts.ndim == 0 else counts[above[_SEAT] % width]
        there = rank < jnp.broadcast_to(count, keep)[parent]
        # Leaves are never popped; a parent beyond the last position is popped too late.
        there &= (below > 0) & (above[_PLACE] < size)[parent]
        cost = add(Cost(above[_HI], above[_LO]).at(parent), step.at(rank))
        seat = above[_PLACE][parent] * width + rank
        new = jnp.where(there, cost.hi, NEVER), cost.lo, seat, jnp.full_like(seat, depth), seat
        both = jnp.concatenate([popped, jnp.stack(new)], axis=1)
        return _merge(both, size, width, keep), None

    first = jnp.where(most[0] > 0, jnp.uint32(0), NEVER)
    popped, root = (
        jnp.zeros((5, number), jnp.uint32).at[_HI].set(NEVER).at[_HI, 0].set(first)
        for number in (size, keep)
    )
    each = jnp.arange(1, depths), steps.at(slice(-1)), counts[: depths - 1], most[1:depths]
    (popped, _), _ = jax.lax.scan(descend, (popped, root), each, unroll=True)
    return _append_children(popped, steps, counts, rows)


def _pairs(keep: int, width: int, by_rank: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the (parent, rank) pairs of the `keep` best parents whose child may be popped.

    Before the child of rank r (from 0) of the i-th best node is popped, its level has given the
    tree the i * (r + 1) children that come no later, and all but the last of these have at least
    one child each: 2 * i * (r + 1) rows with the root. Caps by rank only ensure i parents with one
    child each.
    """
    most = [width if by_rank else min(width, keep // i) for i in range(1, keep + 1)]
    parent = np.repeat(np.arange(keep, dtype=np.int32), most)
    return parent, np.concatenate([np.arange(each, dtype=np.uint32) for each in most])


def _merge(both: jax.Array, size: int, width: int, keep: int) -> tuple[jax.Array, jax.Array]:
    """Merge the children of a level into the `size` nodes popped before them.

    Args:
      both: [5, M], the popped nodes, then the children.

    Returns:
      The merged nodes [5, size], and the best children [5, keep].
    """
    child = jnp.arange(both.shape[1]) >= size
    before = precede(both[_HI], both[_LO], both[_SEAT])
    place = before.sum(1, dtype=jnp.uint32)
    among_children = (before & child).sum(1, dtype=jnp.uint32)
    seat = place[both[_SEAT] // width] * width + both[_SEAT] % width
    moved = jnp.stack([both[_HI], both[_LO], seat, both[_DEPTH], place])
    goal = jnp.arange(size + keep, dtype=jnp.uint32)[:, None]
    chosen = jnp.where(goal < size, place == goal, child & (among_children == goal - size))
    # The chosen nodes are summed out of a mask: an index would be fused with the levels before.
    picked = jnp.where(chosen, moved[:, None], 0).sum(2, dtype=jnp.uint32)
    return picked[:, :size], picked[:, size:]


def _append_children(popped: jax.Array, steps: Cost, counts: jax.Array, rows: int) -> Expanded:
    """Append all children of the popped nodes, in their order, until the rows are full."""
    depths, width = steps.hi.shape
    seat, depth = popped[_SEAT].astype(jnp.int32), popped[_DEPTH].astype(jnp.int32)
    count = jnp.where(popped[_HI] != NEVER, count_children(counts, depth, seat % width), 0)
    end = 1 + jnp.cumsum(count)
    row = jnp.arange(rows)
    source = jnp.minimum((end <= row[:, None]).sum(1), popped.shape[1] - 1)  # its parent's position
    first = end - count
    rank = jnp.clip(row - first[source], 0, width - 1)
    at = jnp.minimum(depth[source], depths - 1)
    cost = add(Cost(popped[_HI], popped[_LO]).at(source), steps.at((at, rank)))
    home = jnp.where(depth > 0, first[seat // width] + seat % width, 0)  # rows of the popped nodes
    root = row == 0
    return Expanded(
        Cost(jnp.where(root, 0, cost.hi), jnp.where(root, 0, cost.lo)),
        jnp.where(root, -1, home[source]),
        jnp.where(root, 0, at * width + rank),
        jnp.where(root, 0, depth[source] + 1),
        jnp.minimum(end[-1], rows),
    )
