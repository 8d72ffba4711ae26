"""The pool of a growing tree: put nodes in step by step, then take the best ones as rows.

This is EAGLE-2's re-ranking.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxspec.core.state import Pool, Tree
from jaxspec.core.tree import assemble, parent_rows


def make_pool(size: int) -> Pool:
    """Make an empty pool with room for `size` nodes."""
    zero = jnp.zeros(size, jnp.int32)
    return Pool(zero, zero - 1, zero, jnp.full(size, -jnp.inf, jnp.float32))


def put_nodes(
    pool: Pool,
    at: int | jax.Array,
    token: jax.Array,
    parent: jax.Array,
    depth: jax.Array,
    logprob: jax.Array,
) -> Pool:
    """Put new nodes into the pool from index `at` on; their arrays [n] are those of `Pool`."""
    new = Pool(token, parent, depth, logprob)
    return jax.tree.map(
        lambda old, one: jax.lax.dynamic_update_slice(old, one.astype(old.dtype), (at,)), pool, new
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
    # The root has id 0, node i of the pool has id i + 1.
    order = jnp.concatenate([jnp.zeros(1, jnp.int32), best + 1])
    parent = jnp.concatenate([jnp.full(1, -1, jnp.int32), pool.parent[best] + 1])
    return assemble(
        token=jnp.append(root, pool.token[best]),
        parent=parent_rows(order, parent),
        depth=jnp.append(jnp.int32(0), pool.depth[best]),
        logprob=jnp.append(jnp.float32(0), -score),
        size=1 + jnp.sum(score < jnp.inf, dtype=jnp.int32),
        max_depth=longest,
    )
