"""Round and loop: the only file that knows the order of the phases draft, grow, verify, accept,
commit, absorb.

Plain autoregressive decoding is the same loop without a drafter: the tree is its root.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxspec.core.cache import append, gather_path
from jaxspec.core.params import Params
from jaxspec.core.sampling import draw, gumbel
from jaxspec.core.state import Accepted, DecodeState, Request, Tree
from jaxspec.core.tree import keep_rows, pad_rows, root_only, take_rows
from jaxspec.drafters.base import Committed
from jaxspec.engine.acceptance import accept_match, accept_rejection, accept_sequential
from jaxspec.engine.grow import draft, grow, target_head
from jaxspec.engine.plan import DecodeConfig, make_plan
from jaxspec.policies.protocol import Observation, Outcome
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
def run(
    params: Params,
    request: Request,
    state: DecodeState,
    max_rounds: jax.Array,
    *,
    config: DecodeConfig,
) -> DecodeState:
    """Up to `max_rounds` rounds, fewer when every sequence is done: one `lax.while_loop`, no host
    in it.

    `state` is donated: its caches are updated in place. Streaming calls this with one round at a
    time. Where a policy may leave drafting out, the loop holds two: rounds of plain decoding until
    it drafts, and rounds that draft until it does not.
    """
    plan = make_plan(params.spec, config)

    def unfinished(carry):
        state, count = carry
        return (count < max_rounds) & ~jnp.all(state.done)

    def drafts(state):
        return plan.policy.act.draft(
            request.controls, state.control, Observation(state.cache.length, ~state.done)
        )

    def rounds(one, wanted, carry):
        """Rounds of one kind as long as they are wanted."""
        return jax.lax.while_loop(
            lambda carry: unfinished(carry) & wanted(carry[0]),
            lambda carry: (one(params, request, carry[0], config), carry[1] + 1),
            carry,
        )

    def turn(carry):
        state, count = rounds(_plain_round, lambda state: _has_room(state) & ~drafts(state), carry)
        return rounds(_drafted_round, drafts, (caught_up(params, state, config), count))

    if state.pending is None:
        return rounds(_drafted_round, lambda state: True, (state, jnp.int32(0)))[0]
    # Loops and no conditional: one that holds the caches would copy them.
    return jax.lax.while_loop(unfinished, turn, (state, jnp.int32(0)))[0]


def _drafted_round(params, request, state, config) -> DecodeState:
    """Draft, grow, verify, accept, commit, absorb."""
    plan, before = make_plan(params.spec, config), state
    noise = noise_at(params, request, config, state.cache.length + 1, plan.longest)
    drafted = draft(params, request, state, noise, config)
    tree, steps = grow(params, state, drafted.proposed, config), jnp.int32(drafted.steps)
    if plan.policy is not None and plan.policy.act.rows is not None:
        seen = Observation(state.cache.length, ~state.done, steps, drafted.pool, tree=tree)
        tree = keep_rows(
            tree,
            jnp.broadcast_to(
                plan.policy.act.rows(request.controls, state.control, seen), state.done.shape
            ),
        )
    verified = verify(params, request, state, tree, noise, drafted.logprob, config)
    state, committed = commit(params, request, state, tree, verified, config)
    state = _observed(params, request, before, state, steps, config)
    return absorb(params, state, committed, config)


def _plain_round(params, request, state, config) -> DecodeState:
    """A round of a policy that does not draft: it costs what a round of `ar` does, and what the
    drafter has to know waits.
    """
    plan, before = make_plan(params.spec, config), state
    noise = noise_at(params, request, config, state.cache.length + 1, 1)
    tree = root_only(state.root, 1)
    verified = _verify_rows(
        params, request, state, _at_least(tree, 1), noise, None, config, longest=1
    )
    state, committed = commit(params, request, state, tree, verified, config)
    path = jnp.pad(state.accepted.path, ((0, 0), (0, plan.longest - 1)))
    state = state.replace(
        tree=pad_rows(tree, plan.widths[-1]), accepted=state.accepted.replace(path=path)
    )
    return _queued(_observed(params, request, before, state, jnp.int32(-1), config), committed)


def _observed(params, request, before, state, steps, config) -> DecodeState:
    """`state` after the policy, if there is one, saw what came of a round of so many draft steps
    int32 [], -1: it was plain.
    """
    policy = make_plan(params.spec, config).policy
    if policy is None:
        return state
    live = ~before.done
    outcome = Outcome(
        steps >= 0, state.tree.size, steps, state.tree, state.accepted, before.cache.length, live
    )
    return state.replace(
        control=policy.observe(request.controls, before.control, outcome),
        round_steps=_write(
            state.round_steps, jnp.broadcast_to(steps, live.shape)[:, None], before.rounds
        ),
    )


def verify(params, request, state, tree, noise, draft_logprob, config) -> Verified:
    """The target's pass over the smallest compiled width that holds every sequence's tree, and
    acceptance.
    """
    plan = make_plan(params.spec, config)

    def at_width(width):
        rows = _at_least(tree, width)
        return lambda: _verify_rows(
            params, request, state, rows, noise, draft_logprob, config, plan.longest
        )

    branches = list(map(at_width, plan.widths))
    if len(branches) == 1:
        return branches[0]()
    needed = jnp.max(tree.size)
    return jax.lax.switch(
        sum((needed > width).astype(jnp.int32) for width in plan.widths[:-1]), branches
    )


def _at_least(tree: Tree, width: int) -> Tree:
    """The first `width` rows, or as many as the smallest forward has."""
    least, rows = _least_rows(tree.token.shape[0]), take_rows(tree, width)
    return rows if width >= least else pad_rows(rows, least)


def _least_rows(batch: int) -> int:
    """Rows of the smallest forward: two for one sequence on a GPU.

    XLA makes a product of one row a multiplication and a sum there, and writes what lies between,
    which is as large as the weight, to memory: at the sizes of Qwen3-8B 8 % more traffic a step
    (compiled for an H100 by jax 0.10.2).
    """
    return 2 if batch == 1 and current_device().platform == "cuda" else 1


def _verify_rows(params, request, state, tree, noise, draft_logprob, config, longest) -> Verified:
    """`longest`: static, tokens that the round commits at most."""
    plan = make_plan(params.spec, config)
    cache, longest = state.cache, longest - 1
    layers = plan.drafter.feature_layers if plan.drafter else ()
    positions = cache.length[:, None] + tree.depth
    out = plan.target.apply(
        params.target, tree.token, positions, cache, tree.ancestors, feature_layers=layers
    )
    logits = plan.target.apply(params.target, out.hidden, method="logits")
    sampling, values = config.sampling, request.sampling
    if config.acceptance == "match" or sampling.greedy:
        accepted = accept_match(tree, draw(logits, noise, tree.depth, sampling, values), longest)
    elif config.acceptance == "sequential":
        accepted = accept_sequential(
            tree, logits, sampling, values, request.keys, cache.length, longest
        )
    else:
        accepted = accept_rejection(
            tree, logits, draft_logprob, sampling, values, request.keys, cache.length, longest
        )
    features = jnp.take_along_axis(out.features, accepted.path[..., None], axis=1)
    return Verified(
        accepted, gather_path(out.k, accepted.path), gather_path(out.v, accepted.path), features
    )


def commit(params, request, state, tree, verified, config) -> tuple[DecodeState, Committed]:
    """Emit the accepted tokens up to a stop or the limit and cache their rows; the drafter has yet
    to absorb them.

    The last emitted token becomes the root, so as many rows are cached as tokens are emitted:
    nothing beyond a stop is emitted, counted or cached.

    Returns:
      (state, what `absorb` takes): rows of the path, the root and the drafted tokens, each with the
      token that follows.
    """
    accepted = verified.accepted
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
    state = state.replace(
        tokens=_write(state.tokens, new, state.emitted),
        emitted=emitted,
        done=state.done | stopped | (emitted >= request.limit),
        root=jnp.where(emit > 0, last, state.root),
        cache=append(state.cache, verified.k, verified.v, emit),
        rounds=state.rounds + (emit > 0),
        round_emitted=_write(state.round_emitted, emit[:, None], state.rounds),
        round_drafted=_write(
            state.round_drafted, jnp.where(state.done, 0, tree.size - 1)[:, None], state.rounds
        ),
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
    draft = drafter.absorb(
        params.drafter(config.method), state.draft, target_head(params, config), committed
    )
    return state.replace(draft=draft)


def caught_up(params, state, config) -> DecodeState:
    """`state` after the drafter absorbed what plain rounds committed."""
    if state.pending is None:
        return state
    state = absorb(params, state, state.pending, config)
    return state.replace(pending=state.pending.replace(count=jnp.zeros_like(state.pending.count)))


def _has_room(state) -> jax.Array:
    """Whether another row may wait, bool []: a forward over many costs hardly more than one over a
    single row.
    """
    return jnp.max(state.pending.count) < state.pending.token.shape[1]


def _queued(state, one: Committed) -> DecodeState:
    """`state` with the row of `one` behind those that wait, for sequences that committed it."""
    pending = state.pending
    # Where nothing was committed the row is written too, and overwritten by the next.
    token, following, features = (
        _write(getattr(pending, name), getattr(one, name), pending.count)
        for name in ("token", "following", "features")
    )
    position = jnp.where(pending.count == 0, one.position, pending.position)
    return state.replace(
        pending=Committed(token, following, features, position, pending.count + one.count)
    )


def noise_at(params, request, config, position, count) -> jax.Array | None:
    """Gumbel noise float32 [B, count, V] of the tokens at absolute positions `position` [B] and on;
    None when greedy.
    """
    if config.sampling.greedy:
        return None
    return gumbel(
        request.keys, position[:, None] + jnp.arange(count), params.spec.target.vocab_size
    )


def is_stop(tokens: jax.Array, request: Request) -> jax.Array:
    return (tokens[..., None] == request.stop).any(-1)
