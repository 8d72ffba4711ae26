"""The best-first tree (DDTree): the N - 1 most probable prefixes of a product of per-depth
marginals, built level by level.

A heap would pop one node at a time. Here each level is built at once from the one above (see
`levels`). With M = N - 1 nodes wanted, a node can only be among them if few enough others are
certain to come first: the child of rank r (from 0) of the i-th best node of a level comes at or
after i * (r + 1) nodes of its own level and i of its parent's, so that the i-th best parent needs
at most M // i - 1 children and only M // 2 parents need any.

This is the order of DDTree's heap (liranringel/ddtree, `build_ddtree_tree`), whose M excludes the
root as here. The argument holds for every score of `scores`, since none ranks a child before its
parent or a sibling before a better-ranked one.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxspec.builders.levels import best, grow
from jaxspec.builders.rows import sorted_tree
from jaxspec.builders.scores import NEVER, Cost, from_logprob
from jaxspec.core.state import Tree


def best_first(
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
      steps: costs [D, C] of the candidates where they are not minus `logprob`, see
        `scores.step_costs`.
    """
    depths, width = logprob.shape
    budget = rows - 1
    nodes = grow(
        from_logprob(logprob, depth_limit) if steps is None else steps,
        first=min(width, budget),
        counts=[min(budget // i - 1, width) for i in range(1, budget // 2 + 1)],
        keep=budget - 1,
        # Every node of smaller or equal ranks comes before a node.
        most=budget,
    )
    order, cost, _ = best(nodes.cost, nodes.path, rows)
    return sorted_tree(
        token,
        logprob,
        root,
        order=order,
        parent=nodes.parent[order],
        index=nodes.index[order],
        size=jnp.sum(cost.hi != NEVER, dtype=jnp.int32),
        max_depth=min(depths, rows - 1),
        cost=cost if steps is None else None,
    )
