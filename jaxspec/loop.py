"""Round and loop: the only file that knows the order of the phases draft, grow, verify, accept, commit, absorb.

Plain autoregressive decoding is the same loop without a drafter: the tree is its root.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxspec.cache import append, gather_path
from jaxspec.drafters.base import Committed
from jaxspec.grow import draft, grow, target_head
from jaxspec.params import Params
from jaxspec.plan import DecodeConfig, make_plan
from jaxspec.policies.protocol import Observation, Outcome
from jaxspec.sampling import draw, gumbel
from jaxspec.state import Accepted, DecodeState, Request, Tree
from jaxspec.tree import keep_rows, pad_rows, root_only, take_rows
from jaxspec.verify import accept_match, accept_rejection, accept_sequential
from pallas_kernels.device import current_device


class Verified(NamedTuple):
    """Outcome of the target's pass over a tree, reduced to the accepted path: what commit needs.

    Attributes:
      k, v: [L, B, A, K, D]; features: [B, A, F].
    """

    accepted: Accepted
    k: jax.Array
    v: jax.Array
    features: jax.Array


@functools.partial(jax.jit, static_argnames=("config",), donate_argnames=("state",))
def run(params: Params, request: Request, state: DecodeState, max_rounds: jax.Array, *, config: DecodeConfig) -> DecodeState:
    """Up to `max_rounds` rounds, fewer when every sequence is done: one `lax.while_loop`, no host in it.

    `state` is donated: its caches are updated in place. Streaming calls this with one round at a time.
    """

    def unfinished(carry):
        state, count = carry
        return (count < max_rounds) & ~jnp.all(state.done)

    def body(carry):
        state, count = carry
        return decode_round(params, request, state, config), count + 1

    return jax.lax.while_loop(unfinished, body, (state, jnp.int32(0)))[0]


def decode_round(params: Params, request: Request, state: DecodeState, config: DecodeConfig) -> DecodeState:
    """One round: draft, grow, verify, accept, commit, absorb."""
    plan = make_plan(params.spec, config)
    if plan.policy is not None:
        return _controlled_round(params, request, state, config)
    noise = noise_at(params, request, config, state.cache.length + 1, plan.longest)
    drafted = draft(params, request, state, noise, config)
    tree = grow(params, state, drafted.proposed, config)
    verified = verify(params, request, state, tree, noise, drafted.logprob, config)
    state, committed = commit(params, request, state, tree, verified, config)
    return absorb(params, state, committed, config)


def _controlled_round(params, request, state, config) -> DecodeState:
    """A round whose tree a policy bounds, or which does not draft."""
    policy, before = make_plan(params.spec, config).policy, state
    tree, steps, noise = propose(params, request, state, config)
    verified = verify(params, request, state, tree, noise, None, config)
    state, committed = commit(params, request, state, tree, verified, config)
    live, context = ~before.done, before.cache.length
    outcome = Outcome(steps >= 0, tree.size, steps, tree, state.accepted, context, live)
    state = state.replace(
        control=policy.observe(request.controls, state.control, outcome),
        round_steps=_write(state.round_steps, jnp.broadcast_to(steps, live.shape)[:, None], before.rounds),
    )
    return _absorb_late(params, request, state, committed, steps >= 0, config)


def propose(params, request, state, config) -> tuple[Tree, jax.Array, jax.Array | None]:
    """The round's tree as the policy wants it; its draft steps after the root's, int32 [], -1: it does not draft; the noise."""
    plan, act = make_plan(params.spec, config), make_plan(params.spec, config).policy.act
    seen = Observation(state.cache.length, ~state.done)

    def noise_of(count):
        return noise_at(params, request, config, state.cache.length + 1, count)

    def drafted():
        noise = noise_of(plan.longest)
        found = draft(params, request, state, noise, config)
        tree, steps = grow(params, state, found.proposed, config), jnp.int32(found.steps)
        if act.rows is None:
            return tree, steps, noise
        rows = act.rows(request.controls, state.control, seen.replace(steps=steps, pool=found.pool, tree=tree))
        return keep_rows(tree, jnp.broadcast_to(rows, state.done.shape)), steps, noise

    def plain():
        # What is drawn after the root alone needs the noise of one position.
        first = None if config.sampling.greedy else jnp.pad(noise_of(1), ((0, 0), (0, plan.longest - 1), (0, 0)))
        return root_only(state.root, plan.widths[-1]), jnp.int32(-1), first

    if act.draft is None:
        return drafted()
    return jax.lax.cond(act.draft(request.controls, state.control, seen), drafted, plain)


def verify(params, request, state, tree, noise, draft_logprob, config) -> Verified:
    """The target's pass over the smallest compiled width that holds every sequence's tree, and acceptance."""
    plan = make_plan(params.spec, config)

    least = _least_rows(tree.token.shape[0])

    def at_width(width):
        rows = take_rows(tree, width) if width >= least else pad_rows(take_rows(tree, width), least)
        return lambda: _verify_rows(params, request, state, rows, noise, draft_logprob, config)

    branches = [at_width(width) for width in plan.widths]
    if len(branches) == 1:
        return branches[0]()
    needed = jnp.max(tree.size)
    return jax.lax.switch(sum((needed > width).astype(jnp.int32) for width in plan.widths[:-1]), branches)


def _least_rows(batch: int) -> int:
    """Rows of the smallest forward: two for one sequence on a GPU.

    XLA makes a product of one row a multiplication and a sum there, and writes what lies between, which is as large as the
    weight, to memory: at the sizes of Qwen3-8B 8 % more traffic a step (compiled for an H100 by jax 0.10.2).
    """
    return 2 if batch == 1 and current_device().platform == "cuda" else 1


def _verify_rows(params, request, state, tree, noise, draft_logprob, config) -> Verified:
    plan = make_plan(params.spec, config)
    cache, longest = state.cache, plan.longest - 1
    layers = plan.drafter.feature_layers if plan.drafter else ()
    positions = cache.length[:, None] + tree.depth
    out = plan.target.apply(params.target, tree.token, positions, cache, tree.ancestors, feature_layers=layers)
    logits = plan.target.apply(params.target, out.hidden, method="logits")
    sampling, values = config.sampling, request.sampling
    if config.acceptance == "match" or sampling.greedy:
        accepted = accept_match(tree, draw(logits, noise, tree.depth, sampling, values), longest)
    elif config.acceptance == "sequential":
        accepted = accept_sequential(tree, logits, sampling, values, request.keys, cache.length, longest)
    else:
        accepted = accept_rejection(tree, logits, draft_logprob, sampling, values, request.keys, cache.length, longest)
    features = jnp.take_along_axis(out.features, accepted.path[..., None], axis=1)
    return Verified(accepted, gather_path(out.k, accepted.path), gather_path(out.v, accepted.path), features)


def commit(params, request, state, tree, verified, config) -> tuple[DecodeState, Committed]:
    """Emit the accepted tokens up to a stop or the limit and cache their rows; the drafter has yet to absorb them.

    The last emitted token becomes the root, so as many rows are cached as tokens are emitted: nothing beyond a stop is
    emitted, counted or cached.

    Returns:
      (state, what `absorb` takes): rows of the path, the root and the drafted tokens, each with the token that follows.
    """
    plan = make_plan(params.spec, config)
    accepted = verified.accepted
    slot = jnp.arange(plan.longest)
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
    state = state.replace(
        tokens=_write(state.tokens, new, state.emitted),
        emitted=emitted,
        done=state.done | stopped | (emitted >= request.limit),
        root=jnp.where(emit > 0, last, state.root),
        cache=append(state.cache, verified.k, verified.v, emit),
        rounds=state.rounds + (emit > 0),
        round_emitted=_write(state.round_emitted, emit[:, None], state.rounds),
        round_drafted=_write(state.round_drafted, jnp.where(state.done, 0, tree.size - 1)[:, None], state.rounds),
        tree=tree,
        accepted=accepted.replace(count=emit),
    )
    return state, committed


def _write(buffer: jax.Array, values: jax.Array, start: jax.Array) -> jax.Array:
    """`buffer` [B, M] with `values` [B, K] from column `start` [B] on."""
    one = functools.partial(jax.lax.dynamic_update_slice_in_dim, axis=0)
    return jax.vmap(one)(buffer, values, start)


def absorb(params, state, committed: Committed, config) -> DecodeState:
    """Let the drafter, if there is one, take in the features of what was committed."""
    drafter = make_plan(params.spec, config).drafter
    if drafter is None:
        return state
    draft = drafter.absorb(params.drafter(config.method), state.draft, target_head(params, config), committed)
    return state.replace(draft=draft)


def _absorb_late(params, request, state, committed: Committed, drafted, config) -> DecodeState:
    """Absorb what was committed: at once after drafting, else together with later rounds, before one of them drafts.

    A forward over A rows costs hardly more than one over a single row, so that rounds of plain decoding are to share one.
    """
    plan = make_plan(params.spec, config)
    if state.pending is None:
        return absorb(params, state, committed, config)
    waiting = _queued(state.pending, committed)
    known = jax.tree.map(lambda new, queued: jnp.where(drafted, new, queued), committed, waiting)
    drafts_next = plan.policy.act.draft(request.controls, state.control, Observation(state.cache.length, ~state.done))
    due = drafted | drafts_next | (jnp.max(known.count) >= plan.longest)
    draft = jax.lax.cond(due, lambda: absorb(params, state, known, config).draft, lambda: state.draft)
    return state.replace(draft=draft, pending=known.replace(count=jnp.where(due, 0, known.count)))


def _queued(pending: Committed, one: Committed) -> Committed:
    """`pending` with the first row of `one` behind its rows, for sequences that committed it."""
    at = pending.count
    here = jnp.arange(pending.token.shape[1]) == at[:, None]

    def put(rows, row):
        return jnp.where(here.reshape(*here.shape, *(1,) * (rows.ndim - 2)), row, rows)

    token, following, features = (
        put(getattr(pending, name), getattr(one, name)[:, :1]) for name in ("token", "following", "features")
    )
    position = jnp.where(at == 0, one.position, pending.position)
    return Committed(token, following, features, position, at + jnp.minimum(one.count, 1))


def noise_at(params, request, config, position, count) -> jax.Array | None:
    """Gumbel noise float32 [B, count, V] of the tokens at absolute positions `position` [B] and on; None when greedy."""
    if config.sampling.greedy:
        return None
    return gumbel(request.keys, position[:, None] + jnp.arange(count), params.spec.target.vocab_size)


def is_stop(tokens: jax.Array, request: Request) -> jax.Array:
    return (tokens[..., None] == request.stop).any(-1)
