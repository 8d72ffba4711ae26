"""The beam: at every depth the W best nodes among the children of the W above, until the budget is
spent.

The controlled baseline of BASTION ("beam at the same budget"): levels of equal width whatever the
drafter's confidence, where the best-first tree puts its nodes wherever they are probable. The i-th
best parent needs W // i children: the one of rank r (from 0) comes at or after i * (r + 1) nodes of
its level. Of the last level that the budget reaches, its best nodes are taken.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxspec.builders.levels import best, grow
from jaxspec.builders.rows import sorted_tree
from jaxspec.builders.scores import NEVER, Cost, from_logprob
from jaxspec.core.state import Tree


def beam(
    token: jax.Array,
    logprob: jax.Array,
    root: jax.Array,
    depth_limit: jax.Array,
    rows: int,
    steps: Cost | None = None,
) -> Tree:
    """Build one tree (no batch axis); arguments as in `best_first`, with the beam's width W as the
    number C of candidates.
    """
    depths, width = logprob.shape
    nodes = grow(
        from_logprob(logprob, depth_limit) if steps is None else steps,
        first=width,
        counts=[width // i for i in range(1, width + 1)],
        keep=width,
        # Every node of smaller or equal ranks is in the beam, and before the node.
        most=width,
    )
    usable = nodes.cost.hi != NEVER
    usable &= jnp.cumsum(usable) <= rows  # ids go level by level, best first
    cost = Cost(jnp.where(usable, nodes.cost.hi, NEVER), nodes.cost.lo)
    order, cost, _ = best(cost, nodes.path, rows)
    return sorted_tree(
        token,
        logprob,
        root,
        order=order,
        parent=nodes.parent[order],
        index=nodes.index[order],
        size=jnp.sum(usable, dtype=jnp.int32),
        max_depth=min(depths, rows - 1),
        cost=cost if steps is None else None,
    )
