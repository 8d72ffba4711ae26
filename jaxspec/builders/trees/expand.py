"""JetSpec's expansion tree (`accum_logp`): pop the best node and append all its children.

This repeats until the budget is spent. A node enters the tree as soon as its parent is popped, so
siblings come in groups and the tree differs from the best-first one: with a width of 7, a budget of
8 gives a star. Nodes are popped by cost (exact, see `scores`), equal ones in order of insertion.
The budget includes the root here, in the paper and in its code. Source: hao-ai-lab/JetSpec,
`jetspec/tree`. There the rows stay in order of expansion; here they are sorted by score afterwards,
as in every tree of jaxspec.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.builders.checks import check_count, check_one_proposal, check_width
from jaxspec.builders.fanout import Rule, make_fanout, reads_entropy
from jaxspec.builders.growth import Growth, Proposes
from jaxspec.builders.one_proposal import grow_at_once
from jaxspec.builders.protocol import Builder
from jaxspec.builders.scores import (
    LOGPROB,
    NEVER,
    Cost,
    Score,
    add,
    from_logprob,
    make_score,
    own_costs,
)
from jaxspec.builders.trees.rows import assemble_sorted
from jaxspec.builders.trees.sizes import count_nodes
from jaxspec.core.state import Tree

# The best width, or nearly, at budgets of 32 by the expected accepted length of JetSpec's golden
# trees (2 is better at 16, 4 beyond 64).
DEFAULT_WIDTH = 3


@dataclasses.dataclass(frozen=True)
class Expand(Builder):
    """See `expand`."""

    name: ClassVar[str] = "expand"
    width: int | None = None
    fanout: Rule | None = None
    score: Score = LOGPROB

    def __post_init__(self) -> None:
        check_count("width", self.width)

    def check(self, proposes: Proposes) -> None:
        check_one_proposal(self, proposes)
        check_width(self.width, proposes.vocab_size)

    @property
    def varies(self) -> bool:
        return self.fanout is not None

    @property
    def by_probability(self) -> bool:
        return self.score == LOGPROB

    def make_growth(self, proposes: Proposes) -> Growth:
        budget, levels, rule = proposes.budget, proposes.levels, self.fanout
        width = min(self.width or DEFAULT_WIDTH, proposes.vocab_size)
        rows = min(budget, count_nodes(width, levels, budget))
        by_entropy = rule is not None and reads_entropy(rule)

        def build(token, logprob, root, depth_limit, entropy=None):
            steps = own_costs(self.score, logprob, entropy, depth_limit)
            caps = rule and jnp.asarray(rule(logprob, entropy) if by_entropy else rule(logprob))
            return build_expand(token, logprob, root, depth_limit, rows, caps, steps)

        # Every pop adds at most one level. A rule reads all depths and may make the tree a chain.
        longest = levels if rule else min(levels, -(-(rows - 1) // width))
        return grow_at_once(
            build,
            rows=rows,
            candidates=width,
            longest=longest,
            entropy=self.score != LOGPROB or by_entropy,
        )


def expand(
    width: int | None = None,
    fanout: str | Mapping[str, Any] | Rule | None = None,
    score: str = "logprob",
    entropy_weight: float | None = None,
) -> Expand:
    """Make JetSpec's tree: pop the best node and append all its children until the budget is spent.

    Args:
      width: children of every expanded node; None is 3.
      fanout: rule that gives nodes fewer children: its name, `make_fanout(name, **settings)` or
        {"rule": name, **settings}; None for no rule.
      score, entropy_weight: see `best_first`.
    """
    if isinstance(fanout, str):
        fanout = make_fanout(fanout)
    elif isinstance(fanout, Mapping):
        fanout = make_fanout(**fanout)
    return Expand(width, fanout, make_score(score, entropy_weight))


class _Growing(NamedTuple):
    """A tree in order of expansion.

    Attributes:
      cost: cost [N] of the path.
      parent: int32 [N], row of the parent.
      index: int32 [N], flat index of the candidate.
      depth: int32 [N].
      closed: bool [N], whether the row was expanded already.
      size: int32 [], rows in use.
    """

    cost: Cost
    parent: jax.Array
    index: jax.Array
    depth: jax.Array
    closed: jax.Array
    size: jax.Array


def build_expand(
    token: jax.Array,
    logprob: jax.Array,
    root: jax.Array,
    depth_limit: jax.Array,
    rows: int,
    caps: jax.Array | None = None,
    steps: Cost | None = None,
) -> Tree:
    """Build one tree (no batch axis).

    Args:
      token, logprob: int32 and float32 [D, K], ranked candidates per depth; an expanded node gets
        all K as children.
      root: int32 [], token of row 0.
      depth_limit: int32 [], deepest node allowed.
      rows: N, root included; static.
      caps: int32 [D], maximum number of children, at least 1, of a node at depth d (the root has d
        = 0); or [D, K], by depth and by the node's rank (the root's is 0); None is K everywhere.
      steps: costs [D, K] of the candidates, see `scores.step_costs`; None for minus `logprob`.
    """
    depths, width = logprob.shape
    own = steps is None
    steps = from_logprob(logprob, depth_limit) if own else steps
    counts = jnp.sum(steps.hi != NEVER, axis=1, dtype=jnp.int32)
    if caps is not None:
        counts = jnp.minimum(counts[:, None], caps) if caps.ndim == 2 else jnp.minimum(counts, caps)
    # Nodes at the last depth, or above a depth without candidates, are leaves.
    counts = jnp.concatenate([counts, jnp.zeros_like(counts[:1])])

    def unfinished(tree: _Growing) -> jax.Array:
        return (tree.size < rows) & _expandable(tree, counts).any()

    tree = jax.lax.while_loop(
        unfinished, lambda tree: _expand_best(tree, steps, counts), _start(rows)
    )
    live = jnp.arange(rows) < tree.size
    hi, lo, order = jax.lax.sort(
        (jnp.where(live, tree.cost.hi, NEVER), tree.cost.lo, jnp.arange(rows, dtype=jnp.int32)),
        num_keys=2,
    )
    return assemble_sorted(
        token,
        logprob,
        root,
        order=order,
        parent=tree.parent[order],
        index=tree.index[order],
        size=tree.size,
        max_depth=min(depths, rows - 1),
        cost=Cost(hi, lo) if own else None,
    )


def _start(rows: int) -> _Growing:
    zeros = jnp.zeros(rows, jnp.int32)
    cost = Cost(zeros.astype(jnp.uint32), zeros.astype(jnp.uint32))
    return _Growing(cost, zeros - 1, zeros, zeros, zeros.astype(bool), jnp.int32(1))


def _expandable(tree: _Growing, counts: jax.Array) -> jax.Array:
    live = jnp.arange(tree.parent.shape[0]) < tree.size
    return live & ~tree.closed & (_count(counts, tree.depth, tree.index) > 0)


def _count(counts: jax.Array, depth: jax.Array, index: jax.Array) -> jax.Array:
    """Look up numbers of children in `counts`, by depth [D + 1] or by depth and rank [D + 1, K]."""
    return counts[depth] if counts.ndim == 1 else counts[depth, index % counts.shape[1]]


def _expand_best(tree: _Growing, steps: Cost, counts: jax.Array) -> _Growing:
    """Pop the cheapest expandable node and append as many of its children as fit.

    Among equals the earliest is popped.
    """
    row = jnp.arange(tree.parent.shape[0], dtype=jnp.int32)
    best, cost = _cheapest(_expandable(tree, counts), tree.cost, row)
    depth = tree.depth[best]
    # If nothing is expandable, an arbitrary row is chosen and must add no children.
    count = jnp.where(cost.hi == NEVER, 0, _count(counts, depth, tree.index[best]))
    rank = row - tree.size
    new = (rank >= 0) & (rank < count)
    rank = jnp.clip(rank, 0, steps.hi.shape[1] - 1)
    at = jnp.minimum(depth, steps.hi.shape[0] - 1)
    child = add(cost, Cost(steps.hi[at, rank], steps.lo[at, rank]))
    return _Growing(
        Cost(jnp.where(new, child.hi, tree.cost.hi), jnp.where(new, child.lo, tree.cost.lo)),
        jnp.where(new, best, tree.parent),
        jnp.where(new, at * steps.hi.shape[1] + rank, tree.index),
        jnp.where(new, depth + 1, tree.depth),
        tree.closed | (row == best),
        jnp.minimum(tree.size + count, row.shape[0]),
    )


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
