"""Draft the rounds of segments again, differentiably, through the drafter's own functions.

The drafter absorbs the rows before a round's root, proposes after the root, and takes its further
steps along the tokens that were committed. What it says there is its distribution at the positions
that the round verified, with a context cut to the segment. Drafters of several tokens a step draft
full blocks here, whatever the shape of the round's tree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxspec.adapt.segments import Segments
from jaxspec.drafters.base import Committed, Drafter, Nodes, Proposal, TargetHead

# What is made of one round: its index, and of each set of variables the logits [S, D, V] and the
# class logits [S, D, C] or None.
Fold = Callable[[jax.Array, list[tuple[jax.Array, Any]]], Any]


def redraft(
    drafter: Drafter,
    versions: Sequence[Any],
    target: TargetHead,
    segments: Segments,
    context: int,
    fold: Fold,
) -> Any:
    """Draft every round of S segments again.

    Args:
      versions: one or more sets of the drafter's variables.
      segments: their rounds have at most `drafter.depth` positions.
      context: rows before the first round's root, at most.
      fold: makes the result of one round. Its intermediate values are computed again for
        gradients, so logits of one round exist at a time.

    Returns:
      The results of `fold`, stacked along a leading axis of Q rounds.
    """
    batch, rows = segments.features.shape[:2]
    depths, longest = segments.reject.shape[-1], segments.reject.shape[-1] + 1
    first = segments.begin[:, 0]
    empty = drafter.init(batch, rows + max(longest, context), segments.features.dtype)
    # XLA would compute the attention over an empty cache while it compiles, which takes long.
    empty = jax.lax.optimization_barrier(empty)
    start = jnp.zeros(batch, jnp.int32)
    # Round 0 follows the context; later rounds follow what the rounds before them committed.
    prompt = _rows(segments, start, context, first)
    states = [drafter.absorb(each, empty, target, prompt) for each in versions]

    def work(states: list[Any], q: jax.Array) -> tuple[list[Any], Any]:
        begin, pairs = segments.begin[:, q], list(zip(versions, states, strict=True))
        said = [
            _propose(drafter, own, state, target, segments, begin, depths) for own, state in pairs
        ]
        new = _rows(segments, begin, longest, segments.count[:, q])
        following = [drafter.absorb(own, state, target, new) for own, state in pairs]
        return following, fold(q, said)

    @jax.checkpoint
    def one(states: list[Any], q: jax.Array) -> tuple[list[Any], Any]:
        out = jax.tree.map(
            lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(work, states, q)[1]
        )
        # Segments have fewer rounds than they have room for; the others cost nothing.
        some = (segments.count[:, q] > 0).any()
        return jax.lax.cond(some, work, lambda states, q: (states, out), states, q)

    return jax.lax.scan(one, states, jnp.arange(segments.begin.shape[1]))[1]


def _rows(segments: Segments, first: jax.Array, rows: int, count: jax.Array) -> Committed:
    """Take `count` [S] rows from row `first` [S] on, of which `rows` (static) are looked at."""
    at = first[:, None] + jnp.arange(rows)
    inside = jnp.minimum(at, segments.features.shape[1] - 1)
    return Committed(
        jnp.take_along_axis(segments.token, inside, axis=1),
        jnp.take_along_axis(segments.token, inside + 1, axis=1),
        jnp.take_along_axis(segments.features, inside[..., None], axis=1),
        first,
        count,
    )


def _propose(
    drafter: Drafter,
    variables: Any,
    state: Any,
    target: TargetHead,
    segments: Segments,
    begin: jax.Array,
    depths: int,
) -> tuple[jax.Array, Any]:
    """Return the logits [S, D, V] and class logits of `depths` positions after rows `begin` [S]."""
    slots, rows = drafter.slots, segments.features.shape[1]
    steps = 0 if drafter.expand is None else -(-depths // slots) - 1

    def token(offset: jax.Array | int) -> jax.Array:
        at = jnp.minimum(begin[:, None] + jnp.atleast_1d(offset), rows)
        return jnp.take_along_axis(segments.token, at, axis=1)

    proposal, scratch = drafter.start(variables, state, target, token(0)[:, 0], slots * (1 + steps))
    one = jnp.ones((len(begin), 1), jnp.int32)

    def follow(scratch: Any, step: jax.Array) -> tuple[Any, tuple[jax.Array, Any]]:
        depth = step * slots
        between = token(depth - slots + jnp.arange(1, slots))[:, None] if slots > 1 else None
        source, live = one * (depth - 1), one > 0
        nodes = Nodes(token(depth), source, one * depth, one * (step - 1), live, between)
        said, scratch = drafter.expand(variables, state, scratch, target, nodes, depth)
        return scratch, (said.logits[:, 0], _classes(said))

    found = [(proposal.logits[:, 0], _classes(proposal))]
    if steps:
        _, later = jax.lax.scan(follow, scratch, jnp.arange(1, steps + 1, dtype=jnp.int32))
        found += [jax.tree.map(lambda leaf, i=i: leaf[i], later) for i in range(steps)]

    def join(parts: list[jax.Array]) -> jax.Array:
        return jnp.concatenate(parts, axis=1)[:, :depths]

    logits = join([logits for logits, _ in found]).astype(jnp.float32)
    if proposal.class_logits is None:
        return logits, None
    return logits, join([classes for _, classes in found])


def _classes(proposal: Proposal) -> jax.Array | None:
    return None if proposal.class_logits is None else proposal.class_logits[:, 0]
