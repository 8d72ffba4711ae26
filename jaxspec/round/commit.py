"""Commit and absorb: add accepted tokens to the sequence, the target's cache and the drafter."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxspec.core.cache import append
from jaxspec.core.columns import write_columns
from jaxspec.core.sampling.penalties import count_generated
from jaxspec.core.state import DecodeState, Request, Tree
from jaxspec.drafters.base import Committed
from jaxspec.round.context import Round, Verified
from jaxspec.round.evidence import append_rows, find_rejections


def commit(
    round: Round, state: DecodeState, tree: Tree, verified: Verified
) -> tuple[DecodeState, Committed]:
    """Emit the accepted tokens up to a stop or the limit, and cache their rows.

    The last emitted token becomes the next root. Nothing after a stop is emitted, counted or
    cached. `absorb` then shows the drafter what was committed.

    Returns:
      (the new state, the argument of `absorb`). The latter holds the rows of the path, each with
      the token that follows it.
    """
    request, accepted = round.request, verified.accepted
    slot = jnp.arange(accepted.path.shape[1])
    # Token d of the round is the drafted token of path row d + 1; the last is the bonus token.
    following = jnp.roll(accepted.path, -1, axis=1)
    drafted = jnp.take_along_axis(tree.token, following, axis=1)
    new = jnp.where(slot < accepted.count[:, None] - 1, drafted, accepted.bonus[:, None])

    stops = is_stop(new, request) & (slot < accepted.count[:, None])
    until_stop = jnp.where(stops.any(1), jnp.argmax(stops, axis=1) + 1, accepted.count)
    emit = jnp.minimum(until_stop, request.limit - state.emitted)
    emit = jnp.where(state.done, 0, emit)
    emitted = state.emitted + emit
    stopped = (stops & (slot < emit[:, None])).any(1)

    last = jnp.take_along_axis(new, jnp.maximum(emit - 1, 0)[:, None], axis=1)[:, 0]
    path = jnp.take_along_axis(tree.token, accepted.path, axis=1)
    committed = Committed(path, new, verified.features, state.cache.length, emit)
    rows = jnp.where(state.done, 0, tree.size - 1)[:, None]
    evidence, rounds = state.evidence, state.rounds
    state = state.replace(
        tokens=write_columns(state.tokens, new, state.emitted),
        emitted=emitted,
        done=state.done | stopped | (emitted >= request.limit),
        root=jnp.where(emit > 0, last, state.root),
        cache=append(state.cache, verified.k, verified.v, emit, verified.stash),
        rounds=state.rounds + (emit > 0),
        round_emitted=write_columns(state.round_emitted, emit[:, None], state.rounds),
        round_drafted=write_columns(state.round_drafted, rows, state.rounds),
        tree=tree,
        accepted=accepted.replace(count=emit),
    )
    if state.counts is not None:
        state = state.replace(counts=count_generated(state.counts, new, emit))
    if evidence is not None:
        assert verified.hidden is not None, "verification keeps them where evidence is gathered"
        rows = verified.features, verified.hidden
        evidence = append_rows(evidence, *rows, committed.position)
        ended = find_rejections(tree, accepted, emit)[:, None]
        ended = write_columns(evidence.rejected, ended, rounds)
        state = state.replace(evidence=evidence.replace(rejected=ended))
    return state, committed


def remember(round: Round, state: DecodeState, scratch: Any) -> DecodeState:
    """Let the drafter keep what it needs of a round's proposals, if it needs anything."""
    if scratch is None or round.drafter.remember is None:
        return state
    return state.replace(draft=round.drafter.remember(state.draft, scratch))


def absorb(round: Round, state: DecodeState, committed: Committed) -> DecodeState:
    """Let the drafter, if the call has one, read the features of the committed tokens."""
    if round.plan.drafter is None:
        return state
    draft = round.drafter.absorb(round.drafter_variables, state.draft, round.target_head, committed)
    return state.replace(draft=draft)


def absorb_pending(round: Round, state: DecodeState) -> DecodeState:
    """Let the drafter absorb what autoregressive rounds committed since its last draft."""
    if state.pending is None:
        return state
    state = absorb(round, state, state.pending)
    nothing = jnp.zeros_like(state.pending.count)
    return state.replace(pending=state.pending.replace(count=nothing))


def make_pending(features: jax.Array, rows: int) -> Committed:
    """Make an empty queue of `rows` committed rows with features [B, F] like the given ones."""
    batch, zero = features.shape[0], jnp.zeros(features.shape[0], jnp.int32)
    tokens = jnp.zeros((batch, rows), jnp.int32)
    room = jnp.zeros((batch, rows, features.shape[1]), features.dtype)
    return Committed(tokens, tokens, room, zero, zero)


def has_room(state: DecodeState) -> jax.Array:
    """Whether the queue has room for another row, bool [].

    Rows wait because the drafter's forward pass over many costs hardly more than over one.
    """
    return jnp.max(state.pending.count) < state.pending.token.shape[1]


def enqueue(state: DecodeState, committed: Committed) -> DecodeState:
    """Append the single row of `committed` to the queue, for sequences that committed it."""
    pending = state.pending
    # Sequences that committed nothing also write a row; their next row overwrites it.
    token, following, features = (
        write_columns(getattr(pending, name), getattr(committed, name), pending.count)
        for name in ("token", "following", "features")
    )
    position = jnp.where(pending.count == 0, committed.position, pending.position)
    count = pending.count + committed.count
    return state.replace(pending=Committed(token, following, features, position, count))


def is_stop(tokens: jax.Array, request: Request) -> jax.Array:
    """Whether tokens int32 [B, ...] end a sequence, bool [B, ...]."""
    stop = request.stop
    if stop.ndim == 2:
        stop = stop.reshape(stop.shape[0], *(1,) * (tokens.ndim - 1), -1)
    return (tokens[..., None] == stop).any(-1)
