"""Commit and absorb: accepted tokens enter the sequence, the target's cache and the drafter."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from jaxspec.core.cache import append
from jaxspec.core.state import DecodeState, Request, Tree
from jaxspec.drafters.base import Committed
from jaxspec.engine.round import Round
from jaxspec.engine.verify import Verified


def commit(
    round: Round, state: DecodeState, tree: Tree, verified: Verified
) -> tuple[DecodeState, Committed]:
    """Emit the accepted tokens up to a stop or the limit, and cache their rows.

    The last emitted token becomes the root. As many rows are cached as tokens are emitted, so
    nothing after a stop is emitted, counted or cached. The drafter has yet to absorb them.

    Returns:
      (state, what `absorb` takes): rows of the path, the root and the drafted tokens, each with the
      token that follows.
    """
    request, accepted = round.request, verified.accepted
    slot = jnp.arange(accepted.path.shape[1])
    # Token d of the round is the drafted token of path row d + 1, and after the path the bonus.
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
    state = state.replace(
        tokens=write_columns(state.tokens, new, state.emitted),
        emitted=emitted,
        done=state.done | stopped | (emitted >= request.limit),
        root=jnp.where(emit > 0, last, state.root),
        cache=append(state.cache, verified.k, verified.v, emit),
        rounds=state.rounds + (emit > 0),
        round_emitted=write_columns(state.round_emitted, emit[:, None], state.rounds),
        round_drafted=write_columns(state.round_drafted, rows, state.rounds),
        tree=tree,
        accepted=accepted.replace(count=emit),
    )
    return state, committed


def absorb(round: Round, state: DecodeState, committed: Committed) -> DecodeState:
    """Let the drafter, if there is one, take in the features of what was committed."""
    if round.plan.drafter is None:
        return state
    draft = round.drafter.absorb(round.drafter_variables, state.draft, round.target_head, committed)
    return state.replace(draft=draft)


def absorb_pending(round: Round, state: DecodeState) -> DecodeState:
    """Let the drafter absorb what autoregressive rounds committed since it drafted last."""
    if state.pending is None:
        return state
    state = absorb(round, state, state.pending)
    nothing = jnp.zeros_like(state.pending.count)
    return state.replace(pending=state.pending.replace(count=nothing))


def make_pending(features: jax.Array, rows: int) -> Committed:
    """An empty queue of `rows` committed rows with features like these [B, F]."""
    batch, zero = features.shape[0], jnp.zeros(features.shape[0], jnp.int32)
    tokens = jnp.zeros((batch, rows), jnp.int32)
    room = jnp.zeros((batch, rows, features.shape[1]), features.dtype)
    return Committed(tokens, tokens, room, zero, zero)


def has_room(state: DecodeState) -> jax.Array:
    """Whether another row may wait in the queue, bool [].

    The drafter's forward over many rows costs hardly more than over one, so rows wait for it.
    """
    return jnp.max(state.pending.count) < state.pending.token.shape[1]


def enqueue(state: DecodeState, committed: Committed) -> DecodeState:
    """Append the single row of `committed` to the queue, for sequences that committed it."""
    pending = state.pending
    # Where nothing was committed the row is written too, and overwritten by the next.
    token, following, features = (
        write_columns(getattr(pending, name), getattr(committed, name), pending.count)
        for name in ("token", "following", "features")
    )
    position = jnp.where(pending.count == 0, committed.position, pending.position)
    count = pending.count + committed.count
    return state.replace(pending=Committed(token, following, features, position, count))


def write_columns(buffer: jax.Array, values: jax.Array, start: jax.Array) -> jax.Array:
    """`buffer` [B, M, …] with `values` [B, K, …] from column `start` int32 [B] on."""
    one = functools.partial(jax.lax.dynamic_update_slice_in_dim, axis=0)
    return jax.vmap(one)(buffer, values, start)


def is_stop(tokens: jax.Array, request: Request) -> jax.Array:
    """Whether tokens int32 [...] end a sequence, bool [...]."""
    return (tokens[..., None] == request.stop).any(-1)
