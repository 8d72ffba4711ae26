"""Draft the rounds of segments again, differentiably, through the drafter's own functions.

The drafter absorbs the rows before a round's root, proposes after the root, and takes its further
steps along the tokens that were committed. What it says there is its distribution at the positions
that the round verified, with a context cut to the segment. Drafters of several tokens a step draft
full blocks here, whatever the shape of the round's tree.

The committed text is known, so no round waits for another: they are drafted side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxspec.adapt.learning.segments import Segments
from jaxspec.drafters.base import Committed, Drafter, Nodes, Proposal, TargetHead


class Said(NamedTuple):
    """What a set of variables says at the K positions of a step.

    Attributes:
      logits: float32 [S, K, V].
      classes: class logits [S, K, C], or None.
      hidden: what the output projections read, [S, K, E], or None.
    """

    logits: jax.Array
    classes: jax.Array | None
    hidden: jax.Array | None


# What is made of a step of one round of every segment: of the rounds int32 [S], the first of its
# positions, and what each set of variables says. Arrays of [S, K, ...].
Fold = Callable[[jax.Array, jax.Array | int, list[Said]], Any]
# Rounds of every segment that are drafted side by side. More of them need more memory, and drafts
# that nobody reads fill them up.
SIDE = 8


class RedraftTask(NamedTuple):
    """What is drafted again.

    Attributes:
      drafter: its functions.
      versions: one or more sets of its variables.
      target: the target's functions.
      segments: S of them.
      fold: makes the results of a step.
    """

    drafter: Drafter
    versions: Sequence[Any]
    target: TargetHead
    segments: Segments
    fold: Fold


class States(NamedTuple):
    """States of each set of variables before N rounds of every segment.

    Attributes:
      own: for each set the arrays that differ between rounds, [N, ...], and None for the others.
      shared: the others, and None for those.
    """

    own: list[list[jax.Array | None]]
    shared: list[list[jax.Array | None]]


def redraft(
    drafter: Drafter,
    versions: Sequence[Any],
    target: TargetHead,
    segments: Segments,
    wanted: jax.Array,
    fold: Fold,
) -> Any:
    """Draft rounds of S segments again.

    Args:
      versions: one or more sets of the drafter's variables.
      segments: their rounds have at most `drafter.depth` positions.
      wanted: [S, Q, D], above 0 at positions whose results are read. What only the others need is
        left out where that is cheap: chunks of rounds without any, and steps behind the last one.
      fold: makes the results of a step. Its intermediate values are computed again for gradients,
        so logits of `SIDE` rounds exist at a time.

    Returns:
      The results of `fold` [Q, S, D, ...]. Where none are wanted, they are zeros or those of
      whatever the drafter says there.
    """
    batch, rounds, depths = wanted.shape
    side = min(SIDE, rounds)
    # Positions up to the last one that is wanted. Rounds with many come first: then few chunks
    # take all steps, and the chunks at the end take none.
    reach = jnp.where(wanted > 0, jnp.arange(1, depths + 1), 0).max(-1)
    order = jnp.argsort(-reach, axis=1)

    def arrange(each: jax.Array) -> jax.Array:
        """Bring [S, Q] into this order and fill the last chunk up with zeros, [chunks * G, S]."""
        each = jnp.take_along_axis(each, order, axis=1)
        return jnp.pad(each, ((0, 0), (0, -rounds % side))).T

    def cut(leaf: jax.Array) -> jax.Array:
        return leaf.reshape(-1, side, *leaf.shape[1:])

    task = RedraftTask(drafter, versions, target, segments, fold)
    own, shared = absorb_rows(task, arrange(segments.begin))

    @jax.checkpoint
    def chunk(given: tuple[jax.Array, jax.Array, Any]) -> Any:
        q, far, own = given

        def draft(q: jax.Array, own: Any) -> Any:
            return draft_round(task, States(own, shared), q, far, depths)

        return skip_unless(far > 0, jax.vmap(draft), q, own)

    every = jnp.broadcast_to(jnp.arange(rounds, dtype=jnp.int32), (batch, rounds))
    far = cut(arrange(reach)).max((1, 2))
    found = jax.lax.map(chunk, (cut(arrange(every)), far, jax.tree.map(cut, own)))
    place = jnp.argsort(order, axis=1).T
    return jax.tree.map(
        lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[place, jnp.arange(batch)], found
    )


def absorb_rows(task: RedraftTask, begin: jax.Array) -> States:
    """Absorb the rows before N rounds of every segment, whose roots are rows `begin` int32 [N, S].

    The text is known, so each round absorbs all rows of its segment and counts those before its
    root. Only that number differs, and under `jax.vmap` whatever does not depend on it is computed
    and kept once: the pass over the rows, and the cache, which all of them fill.
    """
    segments, batch = task.segments, begin.shape[1]
    empty = task.drafter.init(batch, segments.features.shape[1], segments.features.dtype)
    # XLA would compute the attention over an empty cache while it compiles, which takes long.
    empty = jax.lax.optimization_barrier(empty)
    following, start = segments.token[:, 1:], jnp.zeros(batch, jnp.int32)

    def absorb(variables: Any, count: jax.Array) -> list[jax.Array]:
        rows = Committed(segments.token[:, :-1], following, segments.features, start, count)
        return jax.tree.leaves(task.drafter.absorb(variables, empty, task.target, rows))

    def differs(number: int) -> bool:
        try:
            one = jax.vmap(lambda n: absorb(task.versions[0], n)[number], out_axes=None)
            jax.eval_shape(one, begin)
        except ValueError:  # It has an axis of rounds, which JAX does not drop.
            return True
        return False

    which = [differs(number) for number in range(len(jax.tree.leaves(empty)))]
    axes = [0 if own else None for own in which]
    found = [
        jax.vmap(lambda count, each=each: absorb(each, count), out_axes=axes)(begin)
        for each in task.versions
    ]

    def select(own: bool) -> list[list[jax.Array | None]]:
        return [
            [leaf if one is own else None for leaf, one in zip(leaves, which, strict=True)]
            for leaves in found
        ]

    return States(select(True), select(False))


def draft_round(
    task: RedraftTask, states: States, q: jax.Array, far: jax.Array, depths: int
) -> Any:
    """Draft round q int32 [S] of every segment, along the committed tokens.

    Args:
      states: before these rounds, without the axis of rounds.
      far: int32 [], positions that are needed. Steps behind them are left out.
      depths: D.

    Returns:
      The results of `RedraftTask.fold` [S, D, ...], zeros for steps that were left out.
    """
    drafter, target, slots = task.drafter, task.target, task.drafter.slots
    steps = 0 if drafter.expand is None else -(-depths // slots) - 1
    token = _read_tokens(task.segments, q)
    pairs = list(zip(task.versions, _merge(task, states), strict=True))
    rows = slots * (1 + steps)
    started = [drafter.start(own, state, target, token(0)[:, 0], rows) for own, state in pairs]
    found = task.fold(q, 0, [_read(proposal) for proposal, _ in started])
    one = jnp.ones((len(q), 1), jnp.int32)

    def expand(scratches: list[Any], step: jax.Array) -> tuple[list[Any], Any]:
        depth = step * slots
        between = token(depth - slots + jnp.arange(1, slots))[:, None] if slots > 1 else None
        source, live = one * (depth - 1), one > 0
        nodes = Nodes(token(depth), source, one * depth, one * (step - 1), live, between)
        said = [
            drafter.expand(own, state, scratch, target, nodes, depth)
            for (own, state), scratch in zip(pairs, scratches, strict=True)
        ]
        results = task.fold(q, depth, [_read(proposal) for proposal, _ in said])
        return [scratch for _, scratch in said], results

    def follow(scratches: list[Any], step: jax.Array) -> tuple[list[Any], Any]:
        # A scratch of zeros does no harm: the steps behind one that is left out are too.
        return skip_unless(step * slots < far, expand, scratches, step)

    if steps:
        later = jnp.arange(1, steps + 1, dtype=jnp.int32)
        _, more = jax.lax.scan(follow, [scratch for _, scratch in started], later)
        found = jax.tree.map(lambda a, b: jnp.concatenate([a, *b], axis=1), found, more)
    return jax.tree.map(lambda leaf: leaf[:, :depths], found)


def skip_unless(some: jax.Array, work: Callable[..., Any], *given: Any) -> Any:
    """Return the result of `work` if `some` bool [] holds, else zeros, without working."""
    shapes = jax.eval_shape(work, *given)

    def skip(*given: Any) -> Any:
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

    return jax.lax.cond(some, work, skip, *given)


def _merge(task: RedraftTask, states: States) -> list[Any]:
    """Return the state of each set of variables."""
    segments = task.segments
    batch, rows = segments.features.shape[:2]
    like = jax.eval_shape(lambda: task.drafter.init(batch, rows, segments.features.dtype))
    return [
        jax.tree.unflatten(
            jax.tree.structure(like),
            [b if a is None else a for a, b in zip(own, shared, strict=True)],
        )
        for own, shared in zip(*states, strict=True)
    ]


def _read_tokens(segments: Segments, q: jax.Array) -> Callable[[jax.Array | int], jax.Array]:
    """Return what reads the tokens int32 [S, N] at N offsets from the roots of rounds q [S]."""
    begin = jnp.take_along_axis(segments.begin, q[:, None], axis=1)

    def token(offset: jax.Array | int) -> jax.Array:
        at = jnp.minimum(begin + jnp.atleast_1d(offset), segments.features.shape[1])
        return jnp.take_along_axis(segments.token, at, axis=1)

    return token


def _read(proposal: Proposal) -> Said:
    """Return what the only node of a step says."""
    logits, classes, hidden = (
        None if each is None else each[:, 0]
        for each in (proposal.logits, proposal.class_logits, proposal.hidden)
    )
    return Said(logits.astype(jnp.float32), classes, hidden)
