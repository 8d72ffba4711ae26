"""Assemble a tree from nodes in row order: the last step of every builder that sorts."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxspec.builders.scores import Cost, to_logprob
from jaxspec.core.state import Tree
from jaxspec.core.tree import assemble, parent_rows


def assemble_sorted(
    token: jax.Array,
    logprob: jax.Array,
    root: jax.Array,
    *,
    order: jax.Array,
    parent: jax.Array,
    index: jax.Array,
    size: jax.Array,
    max_depth: int,
    cost: Cost | None,
) -> Tree:
    """Assemble one tree (no batch axis) from its nodes in row order, the root first.

    Args:
      token, logprob: int32 and float32 [D, C], the candidates.
      root: int32 [], token of row 0.
      order, parent: int32 [N], ids of the nodes and of their parents.
      index: int32 [N], flat indices of their candidates in [D * C]; the root's is not read.
      size: int32 [], rows in use.
      max_depth: static bound on the depth.
      cost: costs of the nodes if they are minus the log-probabilities of their paths; None if the
        nodes were sorted by another score.
    """
    rows = parent_rows(order, parent)
    # Not `.at[0].set`: of a batch it is a scatter, which XLA makes a loop of on a CPU.
    is_root = jnp.arange(order.shape[0]) == 0
    steps = jnp.where(is_root, 0.0, logprob.reshape(-1)[index])
    return assemble(
        token=jnp.where(is_root, root, token.reshape(-1)[index]),
        parent=rows,
        depth=jnp.where(is_root, 0, index // logprob.shape[1] + 1),
        logprob=_path_sums(steps, rows, max_depth) if cost is None else to_logprob(cost),
        size=size,
        max_depth=max_depth,
    )


def _path_sums(steps: jax.Array, parent: jax.Array, max_depth: int) -> jax.Array:
    """Sum `steps` [N] (the root's is 0) from the root to every row by pointer doubling."""
    total, jump = steps, jnp.maximum(parent, 0)
    for _ in range(max_depth.bit_length()):
        total, jump = total + total[jump], jump[jump]
    return total
