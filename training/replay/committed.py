"""Compute what any depth and number of rows would have committed, from the largest tree of a round.

More draft steps do not change shallower levels: the first W + W * W * d candidates of a dynamic
tree's pool are those of d draft steps. More rows do not change smaller trees either, because rows
are sorted.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxspec.core.state import Pool, Tree
from jaxspec.policies.learned.ltd_features import pool_size


def committed_of_pool(
    pool: Pool, following: jax.Array, width: int, sizes: tuple[int, ...]
) -> jax.Array:
    """Count the tokens that a round would commit, from a dynamic tree's pool (no batch axis).

    Args:
      pool: of width W, at full depth.
      following: int32 [A], the text after the root, -1 beyond its end. A is the length of the
        longest drafted path.
      width: W.
      sizes: numbers of verified rows, the root included.

    Returns:
      int32 [steps + 1, sizes].
    """
    index, score = jnp.arange(pool.token.shape[0]), pool.logprob
    steps = (pool.token.shape[0] - width) // width**2
    reach = pool_size(width, jnp.arange(steps + 1))  # candidates after d steps

    def descend(node, token):
        match = (pool.parent == node) & (pool.token == token) & (score > -jnp.inf)
        node = jnp.where(match.any(), jnp.argmax(match), -2)  # no node has parent -2
        return node, node

    _, path = jax.lax.scan(descend, jnp.int32(-1), following)
    at = jnp.maximum(path, 0)[:, None]
    before = (score > score[at]) | ((score == score[at]) & (index < at))
    place = jnp.cumsum(before, axis=1)[:, reach - 1].T  # [steps + 1, A], candidates before it
    inside = (path >= 0) & (path < reach[:, None])
    kept = inside[:, None] & (place[:, None] < jnp.array(sizes)[:, None] - 1)
    return 1 + kept.sum(-1, dtype=jnp.int32)


def committed_of_tree(tree: Tree, following: jax.Array, sizes: tuple[int, ...]) -> jax.Array:
    """Count the tokens that a round would commit, from one sorted tree (no batch axis).

    Args:
      tree: of the largest size.
      following: int32 [A], the text after the root, -1 beyond its end.
      sizes: numbers of verified rows, the root included.

    Returns:
      int32 [1, sizes].
    """
    index = jnp.arange(tree.token.shape[0])

    def descend(row, token):
        match = (tree.parent == row) & (tree.token == token) & (index > 0) & (index < tree.size)
        row = jnp.where(match.any(), jnp.argmax(match), -2)
        return row, row

    _, path = jax.lax.scan(descend, jnp.int32(0), following)
    kept = (path >= 0) & (path < jnp.array(sizes)[:, None])
    return 1 + kept.sum(-1, dtype=jnp.int32)[None]
