"""EAGLE-2's dynamic tree: every level's best W nodes are drafted from, and the best nodes of all
levels are verified.

Li et al. 2024 (EAGLE-2, section 4) and the released code of EAGLE-3: the root's W best tokens are
the first level; each of the level's W nodes proposes its W best tokens, and the best W of these W *
W candidates are drafted from next. All candidates stay in the pool; its best N - 1 become the tree.
N counts the root, as the reference's `total_token` does.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from jaxspec.builders.stepwise import Stepper, empty_pool, put
from jaxspec.core.state import Nodes


@functools.lru_cache
def make_dynamic(width: int, depth: int, budget: int) -> Stepper:
    """The dynamic tree.

    Args:
      width: W, nodes drafted from on every level and candidates of each. depth: levels of
        candidates, one more than the reference's `depth`, which counts the drafter's forwards after
        the first. budget: rows to verify, the root included.
    """
    size = width + (depth - 1) * width * width

    def frontier(token, source, depth, node, score, depth_limit):
        return Nodes(
            token, source, jnp.full(width, depth), node, (score > -jnp.inf) & (depth < depth_limit)
        )

    def begin(offers, depth_limit):
        token, score = (
            offers.token[0, 0],
            jnp.where(depth_limit > 0, offers.logprob[0, 0], -jnp.inf),
        )
        index = jnp.arange(width)
        pool = put(
            empty_pool(size), 0, token, jnp.full(width, -1), jnp.ones(width, jnp.int32), score
        )
        return pool, frontier(token, 0 * index, 1, index, score, depth_limit)

    def grow(pool, nodes, offers, step, depth_limit):
        at, depth = width + step * width * width, step + 2
        above = jnp.where(nodes.live, pool.logprob[nodes.node], -jnp.inf)
        score = (above[:, None] + offers.logprob[:, 0]).reshape(-1)
        token, parent = offers.token[:, 0].reshape(-1), jnp.repeat(nodes.node, width)
        pool = put(pool, at, token, parent, jnp.full(width * width, depth), score)
        best, choice = jax.lax.top_k(score, width)
        source = 1 + step * width + choice // width
        return pool, frontier(token[choice], source, depth, at + choice, best, depth_limit)

    return Stepper(min(budget, 1 + size), width, depth, 1, width, depth - 1, begin, grow)
