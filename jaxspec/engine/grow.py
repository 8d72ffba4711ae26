"""Draft and grow: the drafter's proposals become the round's tree."""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxspec.builders.candidates import entropy, rank
from jaxspec.builders.stepwise import Offers, Stepper, finish
from jaxspec.core.sampling import process
from jaxspec.core.state import Candidates, Nodes, Pool, Tree
from jaxspec.core.tree import root_only
from jaxspec.drafters.base import Proposal, TargetHead
from jaxspec.engine.acceptance import sample_candidates
from jaxspec.engine.plan import make_plan
from jaxspec.engine.sources import Sources, carried_on, init_sources, observed_sources, seen_at
from jaxspec.policies.protocol import Observation


class Drafted(NamedTuple):
    """What the drafter proposes.

    Attributes:
      proposed: candidates or, where the tree grows with the drafter, the tree; None without a
        drafter.
      logprob: the drafter's log-probabilities float32 [B, depth, V] where acceptance needs them.
      steps: int32 [], draft steps after the root's. pool: what the tree was chosen from, if it grew
        with the drafter.
    """

    proposed: Candidates | Tree | None
    logprob: jax.Array | None = None
    steps: jax.Array | int = 0
    pool: Pool | None = None


def target_head(params, config) -> TargetHead:
    """The target's embedding and output projection."""
    apply = functools.partial(make_plan(params.spec, config).target.apply, params.target)
    return TargetHead(
        functools.partial(apply, method="embed"), functools.partial(apply, method="logits")
    )


def draft(params, request, state, noise, config) -> Drafted:
    """What the drafter proposes.

    Args:
      noise: float32 [B, A, V] of the positions after the root, or None.
    """
    plan = make_plan(params.spec, config)
    if plan.drafter is None:
        return Drafted(None)
    if plan.in_steps:
        return _in_steps(params, request, state, noise, config)
    # A drafter that works in steps computes all slots of its first one, however few the tree can
    # hold.
    longest = plan.builder.longest
    rows = longest if plan.drafter.expand is None else plan.drafter.slots
    size = {} if state.block is None else {"block": state.block}
    variables, target = params.drafter(config.method), target_head(params, config)
    proposal, _ = plan.drafter.start(variables, state.draft, target, state.root, rows, **size)
    return Drafted(
        *_rank(params, request, state, noise, config, proposal.logits[:, 0, :longest], 0)
    )


def grow(params, state, proposed, config) -> Tree:
    """The round's draft tree; without a drafter, and for finished sequences, its root alone."""
    plan = make_plan(params.spec, config)
    if proposed is None:
        return root_only(state.root, 1)
    if isinstance(proposed, Tree):
        return proposed
    depth_limit = _depth_limit(state, plan)
    if isinstance(plan.builder, Stepper):
        return _in_levels(plan.builder, proposed, state.root, depth_limit)
    return plan.builder.build(proposed, state.root, depth_limit)


def _depth_limit(state, plan) -> jax.Array:
    longest = (
        plan.builder.longest
        if state.block is None
        else jnp.minimum(plan.builder.longest, state.block - 1)
    )
    return jnp.where(state.done, 0, longest)


def _rank(
    params, request, state, noise, config, logits, start
) -> tuple[Candidates, jax.Array | None]:
    """Ranked candidates of logits [B, D, V]; `noise` is that of the same tokens, `start` the first
    one's depth less 1.
    """
    plan = make_plan(params.spec, config)
    count, with_entropy = plan.builder.candidates, getattr(plan.builder, "entropy", False)
    own = params.spec.drafter(config.method).score_temperature[0 if config.sampling.greedy else 1]
    scoring = own if config.score_temperature is None else config.score_temperature
    if config.sampling.greedy:
        return rank(logits, count, None, scoring, with_entropy), None
    if config.acceptance == "rejection":
        drawn, q = sample_candidates(
            logits,
            count,
            config.sampling,
            request.sampling,
            request.keys,
            state.cache.length,
            start,
        )
        return drawn.replace(entropy=entropy(q) if with_entropy else None), q
    scores = process(logits, config.sampling, request.sampling)
    coupled = config.acceptance == "match" and config.coupled
    return rank(
        scores, count, noise[:, : logits.shape[1]] if coupled else None, scoring, with_entropy
    ), None


def _in_levels(stepper: Stepper, candidates: Candidates, root, depth_limit) -> Tree:
    """A tree that grows in steps, from candidates that are the same under every node of a depth."""

    def one(token, logprob, root, limit):
        def offers(depth, nodes):
            shape = (nodes, 1, stepper.candidates)
            return Offers(
                *(jnp.broadcast_to(x[depth, : stepper.candidates], shape) for x in (token, logprob))
            )

        def step(i, carry):
            return stepper.grow(*carry, offers(i + 1, stepper.nodes), i, limit)

        pool, _ = jax.lax.fori_loop(0, stepper.steps, step, stepper.begin(offers(0, 1), limit))
        return finish(pool, root, stepper.rows, stepper.longest)

    return jax.vmap(one)(candidates.token, candidates.logprob, root, depth_limit)


def _in_steps(params, request, state, noise, config) -> Drafted:
    """The tree of a drafter whose proposals depend on the path: draft, choose nodes, draft from
    them, and so on.
    """
    plan = make_plan(params.spec, config)
    stepper, drafter, variables = plan.builder, plan.drafter, params.drafter(config.method)
    target, batch = target_head(params, config), state.root.shape[0]
    per_step, limit = stepper.nodes * stepper.slots, _depth_limit(state, plan)
    rows = stepper.slots + stepper.steps * per_step
    act = None if plan.policy is None else plan.policy.act
    asked = act is not None and (act.deeper or act.keep) is not None
    needs = plan.policy.needs if asked else frozenset()

    def offers(proposal: Proposal, nodes: Nodes, q, start):
        logits = proposal.logits[:, :, : stepper.slots]
        shape = logits.shape[:3]
        places = nodes.depth[..., None] + jnp.arange(shape[2])
        ours = None if noise is None else _at(noise, places.reshape(batch, -1))
        flat = logits.reshape(batch, -1, logits.shape[-1])
        ranked, logprob = _rank(params, request, state, ours, config, flat, start)
        if q is not None:
            q = jax.lax.dynamic_update_slice(q, logprob, (0, start, 0))
        token, score = (x.reshape(*shape, -1) for x in (ranked.token, ranked.logprob))
        return Offers(token, score, proposal.classes), q

    zero = jnp.zeros((batch, 1), jnp.int32)
    root = Nodes(state.root[:, None], zero, zero, zero - 1, ~state.done[:, None])
    proposal, scratch = drafter.start(variables, state.draft, target, state.root, rows)
    needs_q = config.acceptance == "rejection" and not config.sampling.greedy
    room = (batch, stepper.slots * (stepper.steps + 1), params.spec.target.vocab_size)
    offered, q = offers(proposal, root, jnp.full(room, -jnp.inf) if needs_q else None, 0)
    pool, nodes = jax.vmap(stepper.begin)(offered, limit)
    sources = init_sources(proposal, rows, needs, asked and act.carry is not None)
    sources = observed_sources(sources, _shown(proposal, stepper.slots), 0)
    if asked:
        pool, nodes, sources = _going(plan, request, state, 0, pool, nodes, sources, ~state.done)

    def body(carry):
        i, pool, nodes, scratch, q, sources = carry
        first = stepper.slots + i * per_step
        proposal, scratch = drafter.expand(variables, state.draft, scratch, target, nodes, first)
        offered, q = offers(proposal, nodes, q, stepper.slots * (i + 1))
        grown, following = jax.vmap(stepper.grow, (0, 0, 0, None, 0))(
            pool, nodes, offered, i, limit
        )
        if asked:
            # Sequences that were not to go on keep their tree while others' grow.
            on = nodes.live.any(1)
            grown, following = jax.tree.map(
                lambda new, old: _where(on, new, old), (grown, following), (pool, nodes)
            )
            sources = observed_sources(sources, _shown(proposal, stepper.slots), first)
            grown, following, sources = _going(
                plan, request, state, i + 1, grown, following, sources, on
            )
        return i + 1, grown, following, scratch, q, sources

    def unfinished(carry):
        return (carry[0] < stepper.steps) & jnp.any(carry[2].live)

    carry = (jnp.int32(0), pool, nodes, scratch, q, sources)
    steps, pool, *_, q, _ = jax.lax.while_loop(unfinished, body, carry) if stepper.steps else carry
    tree = jax.vmap(lambda pool, root: finish(pool, root, stepper.rows, stepper.longest))(
        pool, state.root
    )
    return Drafted(tree, q, steps, pool)


def _shown(proposal: Proposal, slots: int) -> Proposal:
    hidden = None if proposal.hidden is None else proposal.hidden[:, :, :slots]
    return Proposal(proposal.logits[:, :, :slots], hidden=hidden)


def _going(
    plan, request, state, steps, pool: Pool, nodes: Nodes, sources: Sources, grew
) -> tuple[Pool, Nodes, Sources]:
    """The pool and the nodes to draft from after a step of the sequences `grew` bool [B], as the
    policy wants them.

    It chooses among the nodes of the deepest level too, which nothing is drafted from, and then
    whether to go on.
    """
    act, slots = plan.policy.act, plan.builder.slots
    logprob = jnp.take_along_axis(pool.logprob, nodes.node, axis=1)
    seen = Observation(
        state.cache.length, ~state.done, steps, pool, logprob, **seen_at(sources, nodes.source)
    )
    if act.keep is not None:
        kept = act.keep(request.controls, state.control, seen) & (logprob > -jnp.inf)
        pool = jax.tree.map(functools.partial(_where, grew), _without(pool, nodes, kept), pool)
        nodes = nodes.replace(live=nodes.live & kept)
    seen = seen.replace(pool=pool, frontier=jnp.where(nodes.live, logprob, -jnp.inf))
    if act.deeper is not None:
        on = act.deeper(request.controls, state.control, seen)
        nodes = nodes.replace(live=nodes.live & on[:, None])
    # Below the only level of a tree that takes no steps nothing hangs.
    if act.carry is not None and plan.builder.steps:
        values = act.carry(request.controls, state.control, seen)
        sources = carried_on(sources, values, slots, slots + steps * plan.builder.nodes * slots)
    return pool, nodes, sources


def _without(pool: Pool, nodes: Nodes, kept) -> Pool:
    """`pool` where of the level of `nodes` only those that are `kept` bool [B, M] are left."""
    chosen = jax.vmap(lambda room, at, kept: room.at[at].max(kept))(
        jnp.zeros(pool.depth.shape, bool), nodes.node, kept
    )
    dropped = (pool.depth == nodes.depth[:, :1]) & ~chosen
    return pool.replace(logprob=jnp.where(dropped, -jnp.inf, pool.logprob))


def _where(keep: jax.Array, new: jax.Array, old: jax.Array) -> jax.Array:
    return jnp.where(keep.reshape(-1, *(1,) * (new.ndim - 1)), new, old)


def _at(noise: jax.Array, places: jax.Array) -> jax.Array:
    """Noise [B, N, V] of the tokens at `places` int32 [B, N] after the root; beyond the last place,
    the last one's.
    """
    return jnp.take_along_axis(noise, jnp.minimum(places, noise.shape[1] - 1)[..., None], axis=1)
