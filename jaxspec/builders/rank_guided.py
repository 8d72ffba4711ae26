"""SpecBlock's tree: greedy chains, with siblings where the rank head expects the target's token
further down the list.

A block hangs a chain of K tokens under its node. The class that the rank head gives a slot says how
many tokens the slot proposes in all, a high probability of the first lowers that number, and slot 0
of the root's block takes its own. The next blocks start from the nodes of slots that branch and
from the ends of chains. What is set out here is what the authors' released code does; their paper
mentions neither the probabilities nor the width of slot 0.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.builders.stepwise import Offers, Stepper, empty_pool, put
from jaxspec.core.state import Nodes, Pool

# Tokens by rank class, and the modes of both bounds. A last class of width 0 also stops the
# branching of the slots after it.
WIDTHS = {"default": ((2, 4, 10, 0), 0, 0), "slim": ((2, 4, 6, 4), 1, 1)}
# (probability of the best token, tokens at most), the higher first, by mode.
_FIRST_SLOT = (
    (),
    ((0.9, 3), (0.8, 5), (0.6, 8)),
    ((0.95, 2), (0.85, 4), (0.6, 7)),
    ((0.95, 1), (0.9, 2), (0.8, 4), (0.6, 7)),
    ((0.9, 1), (0.8, 3), (0.6, 6)),
)
_OTHER_SLOTS = ((), ((0.95, 2), (0.85, 3)), ((0.9, 1), (0.7, 2), (0.5, 3)))


class _Plan(NamedTuple):
    """Static sizes and settings: K slots, M starts, C candidates of the root's slots and `later` of
    others.
    """

    slots: int
    starts: int
    first: int
    later: int
    width: int
    widths: tuple[int, ...]
    slot0: int
    others: int
    drafted: int
    merge: bool


@functools.lru_cache
def make_rank_guided(
    slots: int,
    blocks: int,
    vocab_size: int,
    budget: int,
    tree_width: int = 10,
    widths: str | tuple[int, ...] = "slim",
    adaptive_slot0: int | None = None,
    adaptive_all: int | None = None,
    starts: int | None = None,
    keep_duplicates: bool = False,
    depth: int | None = None,
) -> Stepper:
    """Rank-guided trees (Shi et al., SpecBlock), for a drafter that gives rank classes.

    Args:
      slots: K, tokens of a block. blocks: that follow each other on a path, at least 1.
      vocab_size: tokens there are to choose from.
      budget: N, rows of the tree, the root included; the best nodes of all that were proposed fill
        it.
      tree_width: tokens of the root's first slot, whatever its class, and starts kept for blocks
        after the second.
      widths: tokens of a slot by its rank class, or the name of one of the authors' two maps in
        `WIDTHS`. Equal widths make the tree uniform: the rank head then decides nothing but whether
        the end of the root's chain starts a block.
      adaptive_slot0: 0 to 4, how the probability of the best token bounds the width of the root's
        first slot; 0: not at all. None: what goes with the map, 1 with widths of one's own.
      adaptive_all: 0 to 2, the same for other slots. In mode 2 the root's slots take the bound for
        their width, as the authors' numpy code does; everywhere else it only lowers it.
      starts: nodes that the second block may start from at most, the most probable ones; every one
        of them costs K rows of a drafter's forward. None: a quarter of the budget, at least 4,
        which on two golden texts cost at most one round in 22. The authors take all: up to 28 with
        `slim`, 40 with `default`.
      keep_duplicates: a block may propose a token where an earlier one did. They are merged, what
        follows the second going below the first, so that the tree has no equal siblings; True keeps
        both, as the authors' code does.
      depth: of the deepest node; None: `slots * blocks`.

    Returns:
      The stepper.

    Raises:
      ValueError: an argument out of range.
    """
    table, *modes = (
        WIDTHS.get(widths, (None, 1, 1)) if isinstance(widths, str) else (tuple(widths), 1, 1)
    )
    adaptive_slot0, adaptive_all = (
        mode if given is None else given
        for given, mode in zip((adaptive_slot0, adaptive_all), modes, strict=True)
    )
    _check(
        slots,
        blocks,
        vocab_size,
        budget,
        tree_width,
        table,
        widths,
        adaptive_slot0,
        adaptive_all,
        starts,
        depth,
    )
    table, width = tuple(min(n, vocab_size) for n in table), min(tree_width, vocab_size)
    later = max(*table, 1)
    others = min(max(later, 3 if adaptive_all == 2 else 0), vocab_size)
    bound = slots + width - 1 + (slots - 1) * (others - 1)
    count = min(max(budget // 4, 4) if starts is None else starts, bound)
    plan = _Plan(
        slots=slots,
        starts=count,
        first=max(width, others),
        later=later,
        width=width,
        widths=table,
        slot0=adaptive_slot0,
        others=adaptive_all,
        drafted=budget - 1,
        merge=not keep_duplicates,
    )
    longest = slots * blocks if depth is None else min(depth, slots * blocks)
    return _stepper(plan, blocks, max(min(longest, budget - 1), 1))


def _stepper(plan: _Plan, blocks: int, longest: int) -> Stepper:
    root, block = plan.slots * plan.first, plan.slots * plan.later * plan.starts

    def begin(offers: Offers, depth_limit):
        if offers.classes is None:
            raise ValueError(
                "rank_guided needs a drafter with a rank head (SpecBlock): choose another builder"
            )
        none = jnp.zeros(1, jnp.int32)
        nodes = Nodes(none, none, none, none - 1, none == 0)
        counts, stopped = _counts(plan, offers, first=True)
        pool, kept = _hang(
            plan,
            empty_pool(root + (blocks - 1) * block),
            nodes,
            offers,
            counts,
            0,
            plan.first,
            depth_limit,
        )
        ends = ~_gives_up(offers.classes)
        return pool, _starts(
            plan, pool, kept, counts, ends, 0, 0, jnp.int32(plan.starts), depth_limit
        )

    def grow(pool: Pool, nodes: Nodes, offers: Offers, step, depth_limit):
        counts, stopped = _counts(plan, offers, first=False)
        at = root + step * block
        pool, kept = _hang(plan, pool, nodes, offers, counts, at, plan.later, depth_limit)
        room = plan.drafted - jnp.sum(pool.logprob > -jnp.inf, dtype=jnp.int32)
        allowed = jnp.minimum(plan.width, jnp.maximum(1, room // plan.slots))
        source = plan.slots + step * plan.starts * plan.slots
        return pool, _starts(plan, pool, kept, counts, ~stopped, at, source, allowed, depth_limit)

    return Stepper(
        plan.drafted + 1, plan.first, longest, plan.slots, plan.starts, blocks - 1, begin, grow
    )


def _counts(plan: _Plan, offers: Offers, first: bool) -> tuple[jax.Array, jax.Array]:
    """Tokens int32 [M, K] of each slot, 0 and 1 being the greedy one alone, and whether branching
    stopped, bool [M].
    """
    classes, sure = offers.classes, jnp.exp(offers.logprob[..., 0])
    counts = _bounded(
        jnp.asarray(plan.widths, jnp.int32)[classes],
        sure,
        _OTHER_SLOTS[plan.others],
        first and plan.others == 2,
    )
    stops = jnp.zeros(classes.shape, bool)
    if plan.widths[-1] == 0:
        stops = classes == len(plan.widths) - 1
        stops = jnp.cumsum(stops.at[:, 0].set(False) if first else stops, axis=1) > 0
    counts = jnp.where(stops, 0, counts)
    if first:
        width = jnp.full_like(counts[:, 0], plan.width)
        counts = counts.at[:, 0].set(_bounded(width, sure[:, 0], _FIRST_SLOT[plan.slot0], False))
    return counts, stops.any(-1)


def _bounded(
    counts: jax.Array, sure: jax.Array, bounds: tuple[tuple[float, int], ...], replace: bool
) -> jax.Array:
    """`counts` lowered to the bound of the highest probability that is reached, or replaced by
    it.
    """
    result = counts
    for probability, most in reversed(bounds):
        result = jnp.where(
            sure >= probability, most if replace else jnp.minimum(counts, most), result
        )
    return result


def _gives_up(classes: jax.Array) -> jax.Array:
    """Whether the first slot that is not of class 0 is of the last one, bool [M]: the end of the
    chain starts no block then.
    """
    found = classes != 0
    first = jnp.take_along_axis(classes, found.argmax(-1)[:, None], axis=1)[:, 0]
    return found.any(-1) & (first == 3)


def _hang(
    plan: _Plan, pool: Pool, nodes: Nodes, offers: Offers, counts, at, ranks: int, depth_limit
):
    """The pool with the chains and siblings below `nodes`, and which of them are there, bool [K,
    ranks, M].

    Slot by slot, ranks before nodes, so that parents stand before their children even where
    duplicates are merged.
    """
    above = jnp.where(nodes.node < 0, 0.0, pool.logprob[jnp.maximum(nodes.node, 0)])
    parent, rank, kept, size = (
        nodes.node,
        jnp.arange(ranks)[:, None],
        [],
        ranks * nodes.node.shape[0],
    )
    for k in range(plan.slots):
        token, step = offers.token[:, k, :ranks].T, offers.logprob[:, k, :ranks].T  # [ranks, M]
        depth = nodes.depth + k + 1
        there = nodes.live & (depth <= depth_limit) & ((rank == 0) | (rank < counts[:, k]))
        score = jnp.where(there, above + step, -jnp.inf)
        new = [jnp.broadcast_to(x, score.shape).reshape(-1) for x in (token, parent, depth, score)]
        pool = put(pool, at + k * size, *new)
        place = at + k * size + jnp.arange(size)
        if plan.merge:
            pool, place, score = _merge(pool, place, score)
        parent = place[: nodes.node.shape[0]]
        above = pool.logprob[parent]
        kept.append(score > -jnp.inf)
    return pool, jnp.stack(kept)


def _merge(pool: Pool, place: jax.Array, score: jax.Array):
    """The pool without those nodes at `place` that stand in it already, the scores of the others,
    and where each node stands.

    The higher score holds: mostly that of the later block, which knows more of what stands before
    the token.
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


def _starts(plan: _Plan, pool: Pool, kept, counts, ends, at, source, allowed, depth_limit) -> Nodes:
    """The nodes that the next block starts from: all of slots that branch, and the ends of chains
    where `ends` bool [M].
    """
    slots, ranks, nodes = kept.shape
    branches = (counts > 1).T[:, None]  # [K, 1, M]
    last = (np.arange(slots) == slots - 1)[:, None, None] & ends
    chosen = kept & (branches | (last & (np.arange(ranks) == 0)[:, None]))
    index = jnp.arange(chosen.size)
    score = jnp.where(
        chosen.reshape(-1), jax.lax.dynamic_slice_in_dim(pool.logprob, at, chosen.size), -jnp.inf
    )
    score, best = (x[: plan.starts] for x in jax.lax.sort((-score, index), num_keys=2))
    slot, node = best // (ranks * nodes), best % nodes
    depth = pool.depth[at + best]
    live = (score < jnp.inf) & (jnp.arange(plan.starts) < allowed) & (depth < depth_limit)
    made = Nodes(pool.token[at + best], source + node * slots + slot, depth, at + best, live)
    return jax.tree.map(lambda x: x if x.dtype == bool else x.astype(jnp.int32), made)


def _check(
    slots, blocks, vocab_size, budget, tree_width, table, widths, slot0, others, starts, depth
) -> None:
    if table is None:
        raise ValueError(
            f"unknown widths {widths!r}: choose one of {', '.join(WIDTHS)} or give a number per rank class"
        )
    if not table or any(not isinstance(n, int) or n < 0 for n in table):
        raise ValueError(
            f"widths are {widths!r}: give a number of tokens, 0 or more, for each rank class"
        )
    small = {
        "slots": slots,
        "blocks": blocks,
        "vocab_size": vocab_size,
        "budget": budget,
        "tree_width": tree_width,
    }
    small |= {
        name: value for name, value in (("starts", starts), ("depth", depth)) if value is not None
    }
    wrong = next((name for name, value in small.items() if value < 1), None)
    if wrong:
        raise ValueError(f"{wrong} is {small[wrong]}: give at least 1")
    if not 0 <= slot0 < len(_FIRST_SLOT) or not 0 <= others < len(_OTHER_SLOTS):
        raise ValueError(
            f"adaptive_slot0 is {slot0} and adaptive_all {others}: give 0 to 4 and 0 to 2"
        )
