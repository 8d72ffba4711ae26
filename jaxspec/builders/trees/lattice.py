"""The lattice tree: the N - 1 most probable prefixes of a drafter that conditions on the branch.

A drafter of one token per step gives every node its own distribution. DDTree's bounds
(`best_first`) need equal distributions at a depth, so they do not hold here. Parent-conditioned
best-first trees are known: PCTree (arXiv 2608.02123), TreeFlash (2606.03819), Weaver (2607.06763)
and UBTree differ in how they restrict candidates; TreeFlash's own is this one with 16 candidates,
over its drafter's few conditions (`drafters.base.Conditions`). Here the tree is exact, and is built
level by level on static shapes.

Of M = N - 1 wanted nodes, these come no later than the child of rank j (from 1) of the i-th best
node of a level: the i best nodes of that level, and its j - 1 better siblings. So

* the i-th best node needs at most M - i children, and the best M - 1 children make the next level,
* a node needs children only while it is among the best M - 1 of all nodes found so far. The others
  are not live, and drafting ends when no node is.

The probability bound (the child of rank j has at most probability 1 / j) would cut more children,
but only by scores, so no array would be smaller.

Nodes are ordered by cost (exact, see `scores`), equal ones by depth, then by their parents' order,
then by rank.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.builders.growth import Growth, Proposes, StepCandidates
from jaxspec.builders.protocol import Builder, Unsuitable, check_choices, check_count
from jaxspec.builders.scores import NEVER, Cost, add, candidate_costs, to_logprob
from jaxspec.builders.trees.levels import choose_best
from jaxspec.builders.trees.rows import assemble_rows, make_pool, put_nodes
from jaxspec.core.state import Nodes, Pool, Tree

# Entries that one kernel compares with each other; longer lists are first cut in groups of these.
_GROUP = 4096


@dataclasses.dataclass(frozen=True)
class Lattice(Builder):
    """See `lattice`."""

    name: ClassVar[str] = "lattice"
    width: int | None = None
    candidates: int | None = None
    shortlist: int | None = None

    def __post_init__(self) -> None:
        check_count("width", self.width)
        check_count("candidates", self.candidates)
        check_count("shortlist", self.shortlist)

    def check(self, proposes: Proposes) -> None:
        check_choices(self, proposes)
        if proposes.slots > 1 or not proposes.steps:
            raise Unsuitable(
                "builder 'lattice' needs a drafter of one token at a time; of one block, "
                "'best_first' makes the same tree"
            )
        if self.shortlist and not proposes.looks_ahead:
            raise ValueError(
                "a shortlist needs a drafter whose distributions depend on a node's depth and "
                "token alone, which is DSpark with a vanilla or gated head: leave 'shortlist' out"
            )

    def make_growth(self, proposes: Proposes) -> Growth:
        wanted = proposes.budget - 1
        children = min(wanted, proposes.vocab_size)
        depth = min(proposes.depth, wanted)
        growth = grow_lattice(
            wanted,
            depth=depth,
            children=children,
            candidates=min(self.candidates or children, children),
            # The last of the wanted nodes has no child that is wanted too.
            width=max(min(self.width or wanted, wanted - 1), 1),
        )
        if not self.shortlist or depth == 1:
            return growth
        shortlist = min(self.shortlist, proposes.vocab_size)
        # M - 1 would do if the shortlist's scores were exact; they are nearly.
        foreseen = min(wanted + wanted // 8, (depth - 1) * shortlist)
        return growth._replace(shortlist=shortlist, foreseen=foreseen)


def lattice(
    width: int | None = None, candidates: int | None = None, shortlist: int | None = None
) -> Lattice:
    """Make the exact best-first tree of drafters of one token at a time.

    `width` and `candidates` trade exactness for work; `is_exact` says of each tree whether they
    changed it. `shortlist` changes no tree.

    Args:
      width: W, nodes per level that are drafted from; None is all that can matter, the budget - 2.
      candidates: C, children of a node that are considered; None is all that can matter.
      shortlist: tokens of every depth among which the nodes to draft from are foreseen, so that one
        product computes them all (see `jaxspec.round.lookahead`); None computes level by level. It
        needs DSpark with a vanilla or gated head.
    """
    return Lattice(width, candidates, shortlist)


class LatticePool(Pool):
    """A pool with exact costs.

    Attributes:
      hi, lo: uint32 [P], words of the nodes' costs.
      missed: Cost []; no node that `width` or `candidates` left out costs less. `NEVER` if they
        left none out.
    """

    hi: jax.Array
    lo: jax.Array
    missed: Cost

    @property
    def cost(self) -> Cost:
        """Return the costs [P]; nodes that a policy dropped are unusable."""
        return Cost(jnp.where(self.logprob > -jnp.inf, self.hi, NEVER), self.lo)


def is_exact(pool: LatticePool, rows: int) -> jax.Array:
    """Return whether a tree of `rows` rows holds the most probable prefixes of all, bool [].

    It is certain if all that was left out costs more than the tree's last node. Takes one tree (no
    batch axis).
    """
    count = min(rows - 1, pool.token.shape[0])
    _, cost, _ = choose_best(pool.cost, (), count)
    return (pool.missed.hi == NEVER) | _less(cost.at(-1), pool.missed)


def grow_lattice(wanted: int, depth: int, children: int, candidates: int, width: int) -> Growth:
    """Make the growth of lattice trees.

    Args:
      wanted: M, nodes of the tree, the root not counted.
      depth: D, levels, at most M.
      children: children of a node that can matter, at most M.
      candidates: C, children of a node that are considered, at most `children`.
      width: W, nodes per level that are drafted from.
    """
    # Children of the i-th best node (from 1), and those that matter but are not considered.
    matter = [min(children, wanted - i) for i in range(1, width + 1)]
    counts = [min(candidates, each) for each in matter]
    parent = np.repeat(np.arange(width, dtype=np.int32), counts)
    rank = np.concatenate([np.arange(each, dtype=np.int32) for each in counts])
    cut = np.array(matter) > candidates
    keep = min(len(parent), wanted - 1)
    steps = depth - 1
    size = candidates + steps * keep
    rows = 1 + min(wanted, size)

    def frontier(pool: LatticePool, at, count: int, source, depth, limit) -> Nodes:
        """Choose the best nodes of the level whose `count` nodes start at index `at`."""
        place = jnp.minimum(jnp.arange(width), count - 1)
        node, cost = at + place, pool.cost
        ahead = _places(cost, node)
        live = (cost.hi[node] != NEVER) & (ahead < wanted - 1) & (depth < limit)
        live &= jnp.arange(width) < count
        return Nodes(pool.token[node], source[place], jnp.full(width, depth), node, live)

    def leave_out(pool: LatticePool, cost: Cost, there: jax.Array | bool) -> LatticePool:
        """Note that nothing cheaper than `cost` [n] was left out, where `there` bool [n] holds."""
        least = _least(Cost(jnp.where(there, cost.hi, NEVER), cost.lo))
        earlier = _less(pool.missed, least)
        kept = Cost(*(jnp.where(earlier, *x) for x in zip(pool.missed, least, strict=True)))
        return pool.replace(missed=kept)

    def narrow(pool: LatticePool, cost: Cost, deeper: jax.Array) -> LatticePool:
        """Note the cheapest node of a level that is beyond the width, unless the tree ends here."""
        if cost.hi.shape[0] <= width or width >= wanted - 1:
            return pool
        return leave_out(pool, cost.at(slice(width, width + 1)), deeper)

    def init(offered: StepCandidates, limit: jax.Array) -> tuple[LatticePool, Nodes]:
        token, logprob = offered.token[0, 0], offered.logprob[0, 0]
        cost = candidate_costs(jnp.where(limit > 0, logprob, -jnp.inf), depth)
        plain, empty = make_pool(size), jnp.full(size, NEVER)
        pool = LatticePool(
            plain.token,
            plain.parent,
            plain.depth,
            plain.logprob,
            hi=empty,
            lo=jnp.zeros_like(empty),
            missed=Cost(empty[0], jnp.uint32(0)),
        )
        below_root, first = jnp.full(candidates, -1), jnp.ones(candidates, jnp.int32)
        pool = put_nodes(
            pool, 0, token, below_root, first, to_logprob(cost), hi=cost.hi, lo=cost.lo
        )
        if candidates < children:
            pool = leave_out(pool, cost.at(slice(-1, None)), True)
        pool = narrow(pool, cost, (limit > 1) & (steps > 0))
        source = jnp.zeros(candidates, jnp.int32)
        return pool, frontier(pool, 0, candidates, source, 1, limit)

    def grow(
        pool: LatticePool, nodes: Nodes, offered: StepCandidates, step: jax.Array, limit: jax.Array
    ) -> tuple[LatticePool, Nodes]:
        above = pool.cost.at(nodes.node)
        above = Cost(jnp.where(nodes.live, above.hi, NEVER), above.lo)
        own = candidate_costs(offered.logprob[:, 0], depth)
        cost = add(above.at(parent), own.at((parent, rank)))
        if cut.any():
            last = add(above, own.at((slice(None), candidates - 1)))
            pool = leave_out(pool, last, jnp.asarray(cut))
        chosen, cost = _choose(cost, keep)
        source = jnp.asarray(parent)[chosen]
        token = offered.token[source, 0, jnp.asarray(rank)[chosen]]
        at, level = candidates + step * keep, step + 2
        pool = put_nodes(
            pool,
            at,
            token,
            nodes.node[source],
            jnp.full(keep, level),
            to_logprob(cost),
            hi=cost.hi,
            lo=cost.lo,
        )
        pool = narrow(pool, cost, (level < limit) & (step + 1 < steps))
        return pool, frontier(pool, at, keep, 1 + step * width + source, level, limit)

    def matters(pool: LatticePool, limit: jax.Array) -> jax.Array:
        ahead = _places(pool.cost, jnp.arange(size, dtype=jnp.int32))
        return (pool.hi != NEVER) & (ahead < wanted - 1) & (pool.depth < jnp.minimum(limit, depth))

    def finish(pool: LatticePool, root: jax.Array) -> Tree:
        best, cost, _ = choose_best(pool.cost, (), rows - 1)
        return assemble_rows(pool, root, best, to_logprob(cost), depth)

    growth = Growth(rows, candidates, depth, 1, width, steps, init, grow, finish)
    return growth._replace(matters=matters)


def _less(a: Cost, b: Cost) -> jax.Array:
    return (a.hi < b.hi) | ((a.hi == b.hi) & (a.lo < b.lo))


def _least(cost: Cost) -> Cost:
    """Return the least of costs [n]."""
    hi = cost.hi.min()
    return Cost(hi, jnp.where(cost.hi == hi, cost.lo, NEVER).min())


def _places(cost: Cost, node: jax.Array) -> jax.Array:
    """Count the nodes that come before each of `node` int32 [W], by cost [P], then by index."""
    index = jnp.arange(cost.hi.shape[0], dtype=jnp.int32)
    mine = cost.at(node[:, None])
    equal = (cost.hi == mine.hi) & (cost.lo == mine.lo)
    before = _less(cost, mine) | (equal & (index < node[:, None]))
    return before.sum(1, dtype=jnp.int32)


def _choose(cost: Cost, keep: int) -> tuple[jax.Array, Cost]:
    """Choose the best `keep` of costs [n]: return their positions and costs, in order.

    Among a long list, the best of every group are chosen first.
    """
    count = cost.hi.shape[0]
    if count <= max(_GROUP, 2 * keep):
        position, cost, _ = choose_best(cost, (), keep)
        return position, cost
    size = max(_GROUP, 2 * keep)
    groups = -(-count // size)
    grouped = Cost(*(jnp.pad(x, (0, groups * size - count), constant_values=NEVER) for x in cost))
    grouped = Cost(*(x.reshape(groups, size) for x in grouped))
    position, best, _ = jax.vmap(lambda one: choose_best(one, (), keep))(grouped)
    position = (position + size * jnp.arange(groups, dtype=jnp.int32)[:, None]).reshape(-1)
    chosen, cost = _choose(Cost(*(x.reshape(-1) for x in best)), keep)
    return position[chosen], cost
