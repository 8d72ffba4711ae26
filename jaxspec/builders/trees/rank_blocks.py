"""Grow rank-guided trees block by block, see `rank_guided`."""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.builders.growth import Growth, StepCandidates
from jaxspec.builders.trees.rows import choose_rows, make_pool, put_nodes
from jaxspec.core.state import Nodes, Pool

# By mode: (least probability of the best token, maximum number of tokens), highest first.
FIRST_SLOT = (
    (),
    ((0.9, 3), (0.8, 5), (0.6, 8)),
    ((0.95, 2), (0.85, 4), (0.6, 7)),
    ((0.95, 1), (0.9, 2), (0.8, 4), (0.6, 7)),
    ((0.9, 1), (0.8, 3), (0.6, 6)),
)
OTHER_SLOTS = ((), ((0.95, 2), (0.85, 3)), ((0.9, 1), (0.7, 2), (0.5, 3)))


class BlockSizes(NamedTuple):
    """Static sizes and settings of rank-guided trees.

    Attributes:
      slots: K, tokens per block.
      starts: M, maximum number of nodes that a step drafts from.
      first: candidates read per slot of the root's block.
      later: candidates read per slot of later blocks.
      width: tokens of the root's first slot, and maximum number of starts after the second block;
        None: its class decides as in other slots, and there is no such maximum.
      widths: tokens of a slot by its rank class; equal ones read no class.
      slot0: mode of the bound `FIRST_SLOT`.
      others: mode of the bound `OTHER_SLOTS`.
      drafted: nodes of the tree, the root not counted.
      merge: whether equal siblings become one node.
    """

    slots: int
    starts: int
    first: int
    later: int
    width: int | None
    widths: tuple[int, ...]
    slot0: int
    others: int
    drafted: int
    merge: bool

    @property
    def guided(self) -> bool:
        """Whether the rank classes are read."""
        return len(set(self.widths)) > 1


def grow_blocks(sizes: BlockSizes, blocks: int, longest: int) -> Growth:
    root, block = sizes.slots * sizes.first, sizes.slots * sizes.later * sizes.starts
    last_class = len(sizes.widths) - 1

    def init(offered: StepCandidates, depth_limit: jax.Array) -> tuple[Pool, Nodes]:
        none = jnp.zeros(1, jnp.int32)
        nodes = Nodes(none, none, none, none - 1, none == 0)
        counts, _ = _counts(sizes, offered, first=True)
        pool = make_pool(root + (blocks - 1) * block)
        pool, kept = _hang(
            sizes, pool, nodes, offered, counts, at=0, ranks=sizes.first, depth_limit=depth_limit
        )
        ends = ~(_gives_up(offered.classes, last_class) & sizes.guided)
        allowed = jnp.int32(sizes.starts)
        return pool, _starts(
            sizes, pool, kept, counts, ends, at=0, source=0, allowed=allowed, limit=depth_limit
        )

    def grow(
        pool: Pool, nodes: Nodes, offered: StepCandidates, step: jax.Array, depth_limit: jax.Array
    ) -> tuple[Pool, Nodes]:
        counts, stopped = _counts(sizes, offered, first=False)
        at = root + step * block
        pool, kept = _hang(
            sizes, pool, nodes, offered, counts, at=at, ranks=sizes.later, depth_limit=depth_limit
        )
        allowed = jnp.int32(sizes.starts)
        if sizes.width is not None:
            room = sizes.drafted - jnp.sum(pool.logprob > -jnp.inf, dtype=jnp.int32)
            allowed = jnp.minimum(sizes.width, jnp.maximum(1, room // sizes.slots))
        source = sizes.slots + step * sizes.starts * sizes.slots
        return pool, _starts(
            sizes,
            pool,
            kept,
            counts,
            ~stopped,
            at=at,
            source=source,
            allowed=allowed,
            limit=depth_limit,
        )

    rows = sizes.drafted + 1
    finish = functools.partial(choose_rows, rows=rows, longest=longest)
    return Growth(
        rows, sizes.first, longest, sizes.slots, sizes.starts, blocks - 1, init, grow, finish
    )


def _counts(sizes: BlockSizes, offered: StepCandidates, first: bool) -> tuple[jax.Array, jax.Array]:
    """Count the tokens of each slot.

    Returns:
      Counts int32 [M, K], where 0 and 1 both mean the greedy token alone, and whether branching
      stopped, bool [M].
    """
    classes, sure = offered.classes, jnp.exp(offered.logprob[..., 0])
    counts = _bounded(
        jnp.asarray(sizes.widths, jnp.int32)[classes],
        sure,
        OTHER_SLOTS[sizes.others],
        first and sizes.others == 2,
    )
    stops = jnp.zeros(classes.shape, bool)
    if sizes.widths[-1] == 0 and sizes.guided:
        stops = classes == len(sizes.widths) - 1
        own = first and sizes.width is not None
        stops = jnp.cumsum(stops.at[:, 0].set(False) if own else stops, axis=1) > 0
    counts = jnp.where(stops, 0, counts)
    if first and sizes.width is not None:
        width = jnp.full_like(counts[:, 0], sizes.width)
        counts = counts.at[:, 0].set(_bounded(width, sure[:, 0], FIRST_SLOT[sizes.slot0], False))
    return counts, stops.any(-1)


def _bounded(
    counts: jax.Array, sure: jax.Array, bounds: tuple[tuple[float, int], ...], replace: bool
) -> jax.Array:
    """Lower `counts` to the bound of the highest probability reached, or replace them by it."""
    result = counts
    for probability, most in reversed(bounds):
        result = jnp.where(
            sure >= probability, most if replace else jnp.minimum(counts, most), result
        )
    return result


def _gives_up(classes: jax.Array, last: int) -> jax.Array:
    """Whether the first slot of a class other than 0 has class `last`, bool [M].

    The end of the chain then starts no block.
    """
    found = classes != 0
    first = jnp.take_along_axis(classes, found.argmax(-1)[:, None], axis=1)[:, 0]
    return found.any(-1) & (first == last)


def _hang(
    sizes: BlockSizes,
    pool: Pool,
    nodes: Nodes,
    offered: StepCandidates,
    counts: jax.Array,
    *,
    at: int | jax.Array,
    ranks: int,
    depth_limit: jax.Array,
) -> tuple[Pool, jax.Array]:
    """Put the chains and siblings below `nodes` into the pool.

    They go in slot by slot, and within a slot rank by rank, so parents come before their children
    even if duplicates are merged.

    Returns:
      The pool, and which of the nodes were kept, bool [K, ranks, M].
    """
    above = jnp.where(nodes.node < 0, 0.0, pool.logprob[jnp.maximum(nodes.node, 0)])
    parent, rank, kept, size = (
        nodes.node,
        jnp.arange(ranks)[:, None],
        [],
        ranks * nodes.node.shape[0],
    )
    for k in range(sizes.slots):
        token, step = offered.token[:, k, :ranks].T, offered.logprob[:, k, :ranks].T  # [ranks, M]
        depth = nodes.depth + k + 1
        there = nodes.live & (depth <= depth_limit) & ((rank == 0) | (rank < counts[:, k]))
        score = jnp.where(there, above + step, -jnp.inf)
        new = [jnp.broadcast_to(x, score.shape).reshape(-1) for x in (token, parent, depth, score)]
        pool = put_nodes(pool, at + k * size, *new)
        place = at + k * size + jnp.arange(size)
        if sizes.merge:
            pool, place, score = _merge(pool, place, score)
        parent = place[: nodes.node.shape[0]]
        above = pool.logprob[parent]
        kept.append(score > -jnp.inf)
    return pool, jnp.stack(kept)


def _merge(pool: Pool, place: jax.Array, score: jax.Array) -> tuple[Pool, jax.Array, jax.Array]:
    """Merge nodes at `place` with equal siblings that were in the pool before.

    The higher score wins. It mostly comes from the later block, which knows more of the tokens
    before.

    Returns:
      The pool, the index of each node after merging, and the scores, -inf for merged nodes.
    """
    index, there = jnp.arange(pool.token.shape[0]), pool.logprob > -jnp.inf
    equal = (
        (pool.parent[place][:, None] == pool.parent)
        & (pool.token[place][:, None] == pool.token)
        & there
    )
    flat = score.reshape(-1)
    equal = equal & (index < place[:, None]) & (flat > -jnp.inf)[:, None]
    twice = equal.any(-1)
    stands = jnp.where(twice, equal.argmax(-1), place)
    logprob = pool.logprob.at[stands].max(flat).at[place].min(jnp.where(twice, -jnp.inf, jnp.inf))
    return (
        pool.replace(logprob=logprob),
        stands,
        jnp.where(twice.reshape(score.shape), -jnp.inf, score),
    )


def _starts(
    sizes: BlockSizes,
    pool: Pool,
    kept: jax.Array,
    counts: jax.Array,
    ends: jax.Array,
    *,
    at: int | jax.Array,
    source: int | jax.Array,
    allowed: jax.Array,
    limit: jax.Array,
) -> Nodes:
    """Choose the nodes that the next block starts from.

    These are all nodes of slots that branch, and the ends of chains where `ends` bool [M] is set.
    """
    slots, ranks, nodes = kept.shape
    branches = (counts > 1).T[:, None]  # [K, 1, M]
    last = (np.arange(slots) == slots - 1)[:, None, None] & ends
    chosen = kept & (branches | (last & (np.arange(ranks) == 0)[:, None]))
    index = jnp.arange(chosen.size)
    score = jnp.where(
        chosen.reshape(-1), jax.lax.dynamic_slice_in_dim(pool.logprob, at, chosen.size), -jnp.inf
    )
    score, best = (x[: sizes.starts] for x in jax.lax.sort((-score, index), num_keys=2))
    slot, node = best // (ranks * nodes), best % nodes
    depth = pool.depth[at + best]
    live = (score < jnp.inf) & (jnp.arange(sizes.starts) < allowed) & (depth < limit)
    made = Nodes(pool.token[at + best], source + node * slots + slot, depth, at + best, live)
    return jax.tree.map(lambda x: x if x.dtype == bool else x.astype(jnp.int32), made)
