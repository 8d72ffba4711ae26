"""The best-first tree (DDTree): the N - 1 most probable prefixes, built level by level.

Prefixes are paths through a product of per-depth marginals. A heap would pop one node at a time.
Here each level is built at once from the one above (see `levels`). Of M = N - 1 wanted nodes, some
are certain to come no later than the child of rank r (from 0) of the i-th best node of a level:
i * (r + 1) of its own level and i of its parent's level. So the i-th best parent needs at most
M // i - 1 children, and only M // 2 parents need any.

The order is that of DDTree's heap (liranringel/ddtree, `build_ddtree_tree`), and its M excludes the
root too. The argument holds for every score of `scores`, since none ranks a child before its parent
or a sibling before a better-ranked one.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax

from jaxspec.builders.growth import Growth, Proposes, count_nodes
from jaxspec.builders.protocol import ScoredBuilder
from jaxspec.builders.scores import Cost, from_logprob, make_score
from jaxspec.builders.trees.levels import grow_levels
from jaxspec.builders.trees.rows import assemble_best
from jaxspec.core.state import Tree


@dataclasses.dataclass(frozen=True)
class BestFirst(ScoredBuilder):
    """See `best_first`."""

    name: ClassVar[str] = "best_first"

    def make_growth(self, proposes: Proposes) -> Growth:
        budget, levels = proposes.budget, proposes.levels
        choices = min(budget - 1, proposes.vocab_size)
        rows = min(budget, count_nodes(choices, levels, budget))
        longest = min(levels, rows - 1)
        return self.grow_by_score(build_best_first, rows=rows, candidates=choices, longest=longest)


def best_first(score: str = "logprob", entropy_weight: float | None = None) -> BestFirst:
    """Make a DDTree: the most probable prefixes, as many as the budget holds.

    Args:
      score: orders paths: by `logprob`, by `entropy` (only the drafter's entropies along the path)
        or by `hybrid` (log-probability minus `entropy_weight` times these entropies).
      entropy_weight: weight in score `hybrid`; None is 0.1.
    """
    return BestFirst(score=make_score(score, entropy_weight))


def build_best_first(
    token: jax.Array,
    logprob: jax.Array,
    root: jax.Array,
    depth_limit: jax.Array,
    rows: int,
    steps: Cost | None = None,
) -> Tree:
    """Build one tree (no batch axis).

    Args:
      token, logprob: int32 and float32 [D, C], ranked candidates per depth; C >= min(rows - 1,
        vocabulary).
      root: int32 [], token of row 0.
      depth_limit: int32 [], deepest node allowed.
      rows: N, root included; static.
      steps: costs [D, C] of the candidates, see `scores.step_costs`; None for minus `logprob`.
    """
    width, budget = logprob.shape[1], rows - 1
    nodes = grow_levels(
        from_logprob(logprob, depth_limit) if steps is None else steps,
        first=min(width, budget),
        counts=[min(budget // i - 1, width) for i in range(1, budget // 2 + 1)],
        keep=budget - 1,
        # All nodes of smaller or equal ranks come before a node.
        most=budget,
    )
    return assemble_best(token, logprob, root, nodes, rows, by_probability=steps is None)
