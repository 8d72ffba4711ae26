"""What any depth and any number of rows of a round's tree would have committed, from the deepest
and largest one.

Depth does not change what shallower levels hold: the first W + W * W * d candidates of a dynamic
tree's pool are those of d draft steps. Nor does size change what smaller trees hold: rows are
sorted.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxspec.core.state import Pool, Tree
from jaxspec.policies.learned.ltd_features import pool_size


def committed_of_pool(
    pool: Pool, following: jax.Array, width: int, sizes: tuple[int, ...]
) -> jax.Array:
    """Tokens that a round would commit, int32 [steps + 1, sizes], of one dynamic tree's pool (no
    batch axis).

    Args:
      pool: of width W, at full depth.
      following: int32 [A], the text after the root; -1 beyond its end. A is the longest drafted
        path.
      sizes: rows verified, the root included.
    """
    index, score = jnp.arange(pool.token.shape[0]), pool.logprob
    steps = (pool.token.shape[0] - width) // width**2
    reach = pool_size(width, jnp.arange(steps + 1))  # candidates that d steps leave

    def descend(node, token):
        match = (pool.parent == node) & (pool.token == token) & (score > -jnp.inf)
        node = jnp.where(match.any(), jnp.argmax(match), -2)  # -2: no node's parent
        return node, node

    _, path = jax.lax.scan(descend, jnp.int32(-1), following)
    at = jnp.maximum(path, 0)[:, None]
    before = (score > score[at]) | ((score == score[at]) & (index < at))
    place = jnp.cumsum(before, axis=1)[:, reach - 1].T  # [steps + 1, A], candidates that come first
    inside = (path >= 0) & (path < reach[:, None])
    kept = inside[:, None] & (place[:, None] < jnp.array(sizes)[:, None] - 1)
    return 1 + kept.sum(-1, dtype=jnp.int32)


def committed_of_tree(tree: Tree, following: jax.Array, sizes: tuple[int, ...]) -> jax.Array:
    """Tokens that a round would commit, int32 [1, sizes], of one sorted tree (no batch axis);
    arguments as above.
    """
    index = jnp.arange(tree.token.shape[0])

    def descend(row, token):
        match = (tree.parent == row) & (tree.token == token) & (index > 0) & (index < tree.size)
        row = jnp.where(match.any(), jnp.argmax(match), -2)
        return row, row

    _, path = jax.lax.scan(descend, jnp.int32(0), following)
    kept = (path >= 0) & (path < jnp.array(sizes)[:, None])
    return 1 + kept.sum(-1, dtype=jnp.int32)[None]
