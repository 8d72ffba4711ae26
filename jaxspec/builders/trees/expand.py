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
import functools
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from jaxspec.builders.fanout import Rule, make_fanout, reads_entropy
from jaxspec.builders.growth import Growth, Proposes, count_nodes, grow_at_once
from jaxspec.builders.protocol import ScoredBuilder, check_count, check_width
from jaxspec.builders.scores import LOGPROB, NEVER, Cost, from_logprob, make_score, own_costs
from jaxspec.builders.trees.expansion import expand_levels, expand_pops
from jaxspec.builders.trees.levels import LevelNodes
from jaxspec.builders.trees.rows import assemble_best
from jaxspec.core.state import Tree

# The best width, or nearly, at budgets of 32 by the expected accepted length of JetSpec's golden
# trees (2 is better at 16, 4 beyond 64).
DEFAULT_WIDTH = 3


@dataclasses.dataclass(frozen=True)
class Expand(ScoredBuilder):
    """See `expand`."""

    name: ClassVar[str] = "expand"
    width: int | None = None
    fanout: Rule | None = None

    def __post_init__(self) -> None:
        check_count("width", self.width)

    def check(self, proposes: Proposes) -> None:
        super().check(proposes)
        check_width(self.width, proposes.vocab_size)

    @property
    def varies(self) -> bool:
        return self.fanout is not None

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
    return Expand(width, fanout, score=make_score(score, entropy_weight))


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
    own = steps is None
    steps = from_logprob(logprob, depth_limit) if own else steps
    counts = jnp.sum(steps.hi != NEVER, axis=1, dtype=jnp.int32)
    if caps is not None:
        counts = jnp.minimum(counts[:, None], caps) if caps.ndim == 2 else jnp.minimum(counts, caps)
    # Nodes at the last depth, or above a depth without candidates, are leaves.
    counts = jnp.concatenate([counts, jnp.zeros_like(counts[:1])])

    # On a GPU, a loop that the data end splits the round's command buffer and is driven by the
    # host.
    tree = jax.lax.platform_dependent(
        steps,
        counts,
        cpu=functools.partial(expand_pops, rows=rows),
        default=functools.partial(expand_levels, rows=rows),
    )
    live = jnp.arange(rows) < tree.size
    cost = Cost(jnp.where(live, tree.cost.hi, NEVER), tree.cost.lo)
    nodes = LevelNodes(cost, (), tree.parent, tree.index)
    return assemble_best(token, logprob, root, nodes, rows, by_probability=own, size=tree.size)
