"""Trees that grow while the drafter runs: pool of candidate nodes, steps, and the final choice of
rows.

A step takes M nodes, lets the drafter propose K tokens after each, adds candidates to a pool and
picks the next M nodes. At the end the best nodes of the pool become the tree (EAGLE-2's
re-ranking). Everything is written for one sequence and vmapped.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import flax.struct
import jax
import jax.numpy as jnp

from jaxspec.core.state import Nodes, Pool, Tree
from jaxspec.core.tree import assemble, parent_rows


@flax.struct.dataclass
class Offers:
    """Ranked candidates of one step's M nodes.

    Attributes:
      token: int32 [M, K, C]. logprob: float32 [M, K, C], non-increasing over C, -inf: must not be
        used.
      classes: int32 [M, K], the slots' rank classes, or None.
    """

    token: jax.Array
    logprob: jax.Array
    classes: jax.Array | None = None


class Stepper(NamedTuple):
    """A way to grow trees in steps; equal arguments give the identical object, a static argument of
    a jit.

    Attributes:
      rows: N, rows of every tree, the root included. candidates: C, read of every slot. longest: no
        node is deeper.
      slots: K, tokens that a step proposes after a node. nodes: M of every step after the root's.
        steps: at most so many.
      begin: (offers of the root [1, K, C], depth_limit int32 []) -> (Pool, Nodes).
      grow: (pool, nodes, offers, step int32 [], depth_limit) -> (Pool, Nodes); step counts from 0.
        Nodes that are not `live` get no offspring, and the round ends when no node is.
    """

    rows: int
    candidates: int
    longest: int
    slots: int
    nodes: int
    steps: int
    begin: Callable[[Offers, jax.Array], tuple[Pool, Nodes]]
    grow: Callable[..., tuple[Pool, Nodes]]


def empty_pool(size: int) -> Pool:
    """A pool of nodes that are not there."""
    zero = jnp.zeros(size, jnp.int32)
    return Pool(zero, zero - 1, zero, jnp.full(size, -jnp.inf, jnp.float32))


def put(pool: Pool, at, token, parent, depth, logprob) -> Pool:
    """`pool` with new nodes from index `at` on."""
    new = Pool(token, parent, depth, logprob)
    return jax.tree.map(
        lambda old, one: jax.lax.dynamic_update_slice(old, one.astype(old.dtype), (at,)), pool, new
    )


def finish(pool: Pool, root: jax.Array, rows: int, longest: int) -> Tree:
    """The tree of `rows` rows (no batch axis) of the root and the pool's best nodes, equals by
    index.

    A path's log-probability never rises along it and parents stand before their children, so the
    best nodes form a tree.
    """
    count = min(rows - 1, pool.token.shape[0])
    index = jnp.arange(pool.token.shape[0], dtype=jnp.int32)
    score, best = (x[:count] for x in jax.lax.sort((-pool.logprob, index), num_keys=2))
    # Ids: the root is 0, node i of the pool i + 1.
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


@functools.lru_cache
def make_chain(slots: int, depth: int) -> Stepper:
    """The chain of the best candidates, `slots` of them a step, `depth` long."""
    steps = -(-depth // slots) - 1

    def extend(pool, offers, at, depth_limit):
        index = at + jnp.arange(slots)
        usable = (offers.logprob[0, :, 0] > -jnp.inf) & (index < depth_limit)
        last = jnp.where(at > 0, pool.logprob[jnp.maximum(at - 1, 0)], 0.0)
        score = jnp.where(
            jnp.cumprod(usable) > 0, last + jnp.cumsum(offers.logprob[0, :, 0]), -jnp.inf
        )
        pool = put(pool, at, offers.token[0, :, 0], index - 1, index + 1, score)
        source = slots * jnp.ones(1, jnp.int32) * (at // slots) + slots - 1
        node = jnp.full(1, at + slots - 1)
        live = jnp.isfinite(score[-1:]) & (at + slots < depth_limit)
        return pool, Nodes(
            offers.token[0, -1:, 0], source, node + 1, node, live, offers.token[:, :-1, 0]
        )

    def begin(offers, depth_limit):
        return extend(empty_pool(slots * (steps + 1)), offers, jnp.int32(0), depth_limit)

    def grow(pool, nodes, offers, step, depth_limit):
        return extend(pool, offers, slots * (step + 1), depth_limit)

    return Stepper(depth + 1, 1, depth, slots, 1, steps, begin, grow)
