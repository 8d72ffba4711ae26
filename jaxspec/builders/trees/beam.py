"""The beam: keep the W best nodes at every depth, until the budget is spent.

Nodes of a depth are chosen among the children of the W nodes above. This is the controlled baseline
of BASTION ("beam at the same budget"): its levels have equal width whatever the drafter's
confidence, while the best-first tree puts its nodes where they are probable. The i-th best parent
needs W // i children: its child of rank r (from 0) is at position i * (r + 1) of its level or
later. The last level that the budget reaches keeps its best nodes.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from jaxspec.builders.growth import Growth, Proposes
from jaxspec.builders.protocol import ScoredBuilder, check_count, check_width
from jaxspec.builders.scores import NEVER, Cost, from_logprob, make_score
from jaxspec.builders.trees.levels import grow_levels
from jaxspec.builders.trees.rows import assemble_best
from jaxspec.core.state import Tree


@dataclasses.dataclass(frozen=True)
class Beam(ScoredBuilder):
    """See `beam`."""

    name: ClassVar[str] = "beam"
    width: int | None = None

    def __post_init__(self) -> None:
        check_count("width", self.width)

    def check(self, proposes: Proposes) -> None:
        super().check(proposes)
        check_width(self.width, proposes.vocab_size)

    def make_growth(self, proposes: Proposes) -> Growth:
        budget, levels = proposes.budget, proposes.levels
        width = min(self.width or max(-(-(budget - 1) // levels), 1), proposes.vocab_size)
        rows = min(budget, 1 + width * levels)
        # Every level but the last holds `width` nodes.
        longest = min(levels, -(-(rows - 1) // width))
        return self.grow_by_score(build_beam, rows=rows, candidates=width, longest=longest)


def beam(
    width: int | None = None, score: str = "logprob", entropy_weight: float | None = None
) -> Beam:
    """Make a beam: the best nodes of every depth.

    Args:
      width: W, nodes per depth; None spreads the budget over all depths.
      score, entropy_weight: see `best_first`.
    """
    return Beam(width, score=make_score(score, entropy_weight))


def build_beam(
    token: jax.Array,
    logprob: jax.Array,
    root: jax.Array,
    depth_limit: jax.Array,
    rows: int,
    steps: Cost | None = None,
) -> Tree:
    """Build one tree (no batch axis).

    Arguments are those of `build_best_first`; the number C of candidates is the beam's width W.
    """
    width = logprob.shape[1]
    nodes = grow_levels(
        from_logprob(logprob, depth_limit) if steps is None else steps,
        first=width,
        counts=[width // i for i in range(1, width + 1)],
        keep=width,
        # Every node of smaller or equal ranks is in the beam and comes first.
        most=width,
    )
    usable = nodes.cost.hi != NEVER
    usable &= jnp.cumsum(usable) <= rows  # ids go level by level, best first
    nodes = nodes._replace(cost=Cost(jnp.where(usable, nodes.cost.hi, NEVER), nodes.cost.lo))
    return assemble_best(token, logprob, root, nodes, rows, by_probability=steps is None)
