"""Choose the rows of a tree, from sorted nodes or from the pool of a tree that grew in steps."""

from __future__ import annotations

from typing import TypeVar

import jax
import jax.numpy as jnp

from jaxspec.builders.scores import NEVER, Cost, to_logprob
from jaxspec.builders.trees.levels import LevelNodes, choose_best
from jaxspec.core.state import Pool, Tree
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
        logprob=path_sums(steps, rows, max_depth) if cost is None else to_logprob(cost),
        size=size,
        max_depth=max_depth,
    )


def assemble_best(
    token: jax.Array,
    logprob: jax.Array,
    root: jax.Array,
    nodes: LevelNodes,
    rows: int,
    *,
    by_probability: bool,
    size: jax.Array | None = None,
) -> Tree:
    """Assemble one tree (no batch axis) from the best `rows` of its nodes, the root among them.

    Args:
      token, logprob, root: see `assemble_sorted`.
      nodes: in order of their ids.
      by_probability: whether costs are minus the log-probabilities of paths.
      size: int32 [], rows in use, if it is known already.
    """
    order, cost, _ = choose_best(nodes.cost, nodes.path, rows)
    return assemble_sorted(
        token,
        logprob,
        root,
        order=order,
        parent=nodes.parent[order],
        index=nodes.index[order],
        size=jnp.sum(cost.hi != NEVER, dtype=jnp.int32) if size is None else size,
        max_depth=min(logprob.shape[0], rows - 1),
        cost=cost if by_probability else None,
    )


def path_sums(steps: jax.Array, parent: jax.Array, max_depth: int) -> jax.Array:
    """Sum `steps` [N] (the root's is 0) from the root to every row by pointer doubling."""
    total, jump = steps, jnp.maximum(parent, 0)
    for _ in range(max_depth.bit_length()):
        total, jump = total + total[jump], jump[jump]
    return total


AnyPool = TypeVar("AnyPool", bound=Pool)


def make_pool(size: int) -> Pool:
    """Make an empty pool with room for `size` nodes."""
    zero = jnp.zeros(size, jnp.int32)
    return Pool(zero, zero - 1, zero, jnp.full(size, -jnp.inf, jnp.float32))


def put_nodes(
    pool: AnyPool,
    at: int | jax.Array,
    token: jax.Array,
    parent: jax.Array,
    depth: jax.Array,
    logprob: jax.Array,
    **more: jax.Array,
) -> AnyPool:
    """Put new nodes into the pool from index `at` on.

    Their arrays [n] are those of `Pool`; `more` are those that a subclass adds.
    """
    new = {"token": token, "parent": parent, "depth": depth, "logprob": logprob, **more}
    # A GPU makes one kernel of these selections; of updates in place, a copy and a kernel for each.
    place = jnp.arange(pool.token.shape[0], dtype=jnp.int32) - at
    there = (place >= 0) & (place < token.shape[0])
    place = jnp.clip(place, 0, token.shape[0] - 1)
    return pool.replace(
        **{
            name: jnp.where(
                there, one.astype(getattr(pool, name).dtype)[place], getattr(pool, name)
            )
            for name, one in new.items()
        }
    )


def order_nodes(pool: Pool, count: int) -> tuple[jax.Array, jax.Array]:
    """Return (minus the log-probabilities float32 [count], indices int32 [count]) of the best nodes
    of a pool without batch axis, best first; equal nodes are ordered by index.
    """
    index = jnp.arange(pool.token.shape[0], dtype=jnp.int32)
    score, best = jax.lax.sort((-pool.logprob, index), num_keys=2)
    return score[:count], best[:count]


def choose_rows(pool: Pool, root: jax.Array, rows: int, longest: int) -> Tree:
    """Assemble a tree (no batch axis) from the root and the pool's best nodes.

    Equal nodes are ordered by index. The log-probability never rises along a path and parents come
    before their children, so the best nodes form a tree.

    Args:
      root: int32 [], token of row 0.
      rows: N, root included; static.
      longest: static bound on the depth.
    """
    score, best = order_nodes(pool, min(rows - 1, pool.token.shape[0]))
    return assemble_rows(pool, root, best, -score, longest)


def assemble_rows(
    pool: Pool, root: jax.Array, best: jax.Array, logprob: jax.Array, longest: int
) -> Tree:
    """Assemble a tree (no batch axis) from the root and chosen nodes of the pool.

    Args:
      root: int32 [], token of row 0.
      best: int32 [N - 1], the nodes in row order, parents before children; each node's parent is
        one of them.
      logprob: float32 [N - 1], their log-probabilities, non-increasing; -inf for no node.
      longest: static bound on the depth.
    """
    # The root has id 0, node i of the pool has id i + 1.
    order = jnp.concatenate([jnp.zeros(1, jnp.int32), best + 1])
    parent = jnp.concatenate([jnp.full(1, -1, jnp.int32), pool.parent[best] + 1])
    return assemble(
        token=jnp.append(root, pool.token[best]),
        parent=parent_rows(order, parent),
        depth=jnp.append(jnp.int32(0), pool.depth[best]),
        logprob=jnp.append(jnp.float32(0), logprob),
        size=1 + jnp.sum(logprob > -jnp.inf, dtype=jnp.int32),
        max_depth=longest,
    )
