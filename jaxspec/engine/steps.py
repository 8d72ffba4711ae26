"""Trees that grow while the drafter runs: draft, choose nodes, draft after them, and so on."""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxspec.builders.stepwise import Offers, finish
from jaxspec.core.state import DecodeState, Nodes, Pool
from jaxspec.drafters.base import Proposal
from jaxspec.engine.proposals import Drafted, depth_limit, rank_candidates
from jaxspec.engine.round import Round
from jaxspec.engine.sources import (
    Sources,
    init_sources,
    record_carried,
    record_sources,
    select_sources,
)
from jaxspec.policies.protocol import Observation


class _Growing(NamedTuple):
    """The carry of the draft steps.

    Attributes:
      step: int32 [], steps taken. pool, nodes: the tree so far, and what is drafted from next.
      scratch: the drafter's. logprob: float32 [B, depth, V], if acceptance needs it.
      sources: what the policy sees of the distributions.
    """

    step: jax.Array
    pool: Pool
    nodes: Nodes
    scratch: object
    logprob: jax.Array | None
    sources: Sources


def draft_in_steps(round: Round, state: DecodeState, noise: jax.Array | None) -> Drafted:
    """The tree of a drafter whose proposals depend on the path.

    Args:
      noise: float32 [B, A, V], of the tokens after the root; None for greedy decoding.
    """
    stepper, limit = round.plan.builder, depth_limit(round, state)
    growing = _begin(round, state, noise, limit)
    if stepper.steps:
        growing = jax.lax.while_loop(
            lambda growing: (growing.step < stepper.steps) & jnp.any(growing.nodes.live),
            lambda growing: _step(round, state, noise, limit, growing),
            growing,
        )
    choose = functools.partial(finish, rows=stepper.rows, longest=stepper.longest)
    tree = jax.vmap(choose)(growing.pool, state.root)
    return Drafted(tree, growing.logprob, growing.step, growing.pool)


def _asks_policy(round: Round) -> bool:
    """Whether the policy decides after draft steps."""
    act = None if round.plan.policy is None else round.plan.policy.act
    return act is not None and (act.deeper or act.keep) is not None


def _begin(round: Round, state: DecodeState, noise: jax.Array | None, limit: jax.Array) -> _Growing:
    """The root's proposal, and the nodes that it starts the tree with."""
    config, stepper, batch = round.config, round.plan.builder, state.root.shape[0]
    rows = stepper.slots + stepper.steps * stepper.nodes * stepper.slots
    asked = _asks_policy(round)
    zero = jnp.zeros((batch, 1), jnp.int32)
    root = Nodes(state.root[:, None], zero, zero, zero - 1, ~state.done[:, None])
    proposal, scratch = round.drafter.start(
        round.drafter_variables, state.draft, round.target_head, state.root, rows
    )
    logprob = None
    if config.acceptance == "rejection" and not config.sampling.greedy:
        depth = stepper.slots * (stepper.steps + 1)
        logprob = jnp.full((batch, depth, round.params.spec.target.vocab_size), -jnp.inf)
    offers, logprob = _offer(round, state, noise, proposal, root, logprob, 0)
    pool, nodes = jax.vmap(stepper.begin)(offers, limit)
    needs = round.plan.policy.needs if asked else frozenset()
    carries = asked and round.plan.policy.act.carry is not None
    sources = init_sources(proposal, rows, needs, carries)
    sources = record_sources(sources, _take_slots(proposal, stepper.slots), 0)
    if asked:
        pool, nodes, sources = _apply_stop_rule(round, state, 0, pool, nodes, sources, ~state.done)
    return _Growing(jnp.int32(0), pool, nodes, scratch, logprob, sources)


def _step(
    round: Round,
    state: DecodeState,
    noise: jax.Array | None,
    limit: jax.Array,
    growing: _Growing,
) -> _Growing:
    """Draft after the chosen nodes and let the builder choose the next ones."""
    stepper = round.plan.builder
    i, pool, nodes, scratch, logprob, sources = growing
    first = stepper.slots + i * stepper.nodes * stepper.slots
    proposal, scratch = round.drafter.expand(
        round.drafter_variables, state.draft, scratch, round.target_head, nodes, first
    )
    offers, logprob = _offer(round, state, noise, proposal, nodes, logprob, stepper.slots * (i + 1))
    grown, following = jax.vmap(stepper.grow, (0, 0, 0, None, 0))(pool, nodes, offers, i, limit)
    if _asks_policy(round):
        # Sequences that stopped keep their tree while others' grow.
        on = nodes.live.any(1)
        grown, following = jax.tree.map(
            functools.partial(_choose, on), (grown, following), (pool, nodes)
        )
        sources = record_sources(sources, _take_slots(proposal, stepper.slots), first)
        grown, following, sources = _apply_stop_rule(
            round, state, i + 1, grown, following, sources, on
        )
    return _Growing(i + 1, grown, following, scratch, logprob, sources)


def _offer(
    round: Round,
    state: DecodeState,
    noise: jax.Array | None,
    proposal: Proposal,
    nodes: Nodes,
    known: jax.Array | None,
    start: jax.Array | int,
) -> tuple[Offers, jax.Array | None]:
    """Ranked candidates after `nodes`, and `known` log-probabilities with those of this step."""
    slots, batch = round.plan.builder.slots, state.root.shape[0]
    logits = proposal.logits[:, :, :slots]
    shape = logits.shape[:3]
    places = nodes.depth[..., None] + jnp.arange(shape[2])
    ours = None if noise is None else _noise_at(noise, places.reshape(batch, -1))
    flat = logits.reshape(batch, -1, logits.shape[-1])
    ranked, logprob = rank_candidates(round, state, ours, flat, start)
    if known is not None:
        known = jax.lax.dynamic_update_slice(known, logprob, (0, start, 0))
    token, score = (x.reshape(*shape, -1) for x in (ranked.token, ranked.logprob))
    return Offers(token, score, proposal.classes), known


def _take_slots(proposal: Proposal, slots: int) -> Proposal:
    """The first `slots` of what each node proposes, without rank classes."""
    hidden = None if proposal.hidden is None else proposal.hidden[:, :, :slots]
    return Proposal(proposal.logits[:, :, :slots], hidden=hidden)


def _apply_stop_rule(
    round: Round,
    state: DecodeState,
    steps: jax.Array | int,
    pool: Pool,
    nodes: Nodes,
    sources: Sources,
    grew: jax.Array,
) -> tuple[Pool, Nodes, Sources]:
    """Let the policy drop nodes of the newest level and decide which sequences draft on.

    It chooses among the nodes of the deepest level too, which nothing is drafted from.

    Args:
      steps: draft steps taken after the root's. grew: bool [B], sequences that took the last one.
    """
    policy, builder = round.plan.policy, round.plan.builder
    act, controls = policy.act, round.request.controls
    logprob = jnp.take_along_axis(pool.logprob, nodes.node, axis=1)
    figures = select_sources(sources, nodes.source)
    seen = Observation(state.cache.length, ~state.done, steps, pool, logprob, **figures)
    if act.keep is not None:
        kept = act.keep(controls, state.control, seen) & (logprob > -jnp.inf)
        fewer = _drop_nodes(pool, nodes, kept)
        pool = jax.tree.map(functools.partial(_choose, grew), fewer, pool)
        nodes = nodes.replace(live=nodes.live & kept)
    seen = seen.replace(pool=pool, frontier=jnp.where(nodes.live, logprob, -jnp.inf))
    if act.deeper is not None:
        on = act.deeper(controls, state.control, seen)
        nodes = nodes.replace(live=nodes.live & on[:, None])
    # A tree that takes no steps has nothing below its only level.
    if act.carry is not None and builder.steps:
        values = act.carry(controls, state.control, seen)
        first = builder.slots + steps * builder.nodes * builder.slots
        sources = record_carried(sources, values, builder.slots, first)
    return pool, nodes, sources


def _drop_nodes(pool: Pool, nodes: Nodes, kept: jax.Array) -> Pool:
    """`pool` without those nodes of the level of `nodes` that are not `kept` bool [B, M]."""
    chosen = jax.vmap(lambda room, at, kept: room.at[at].max(kept))(
        jnp.zeros(pool.depth.shape, bool), nodes.node, kept
    )
    dropped = (pool.depth == nodes.depth[:, :1]) & ~chosen
    return pool.replace(logprob=jnp.where(dropped, -jnp.inf, pool.logprob))


def _choose(new_where: jax.Array, new: jax.Array, old: jax.Array) -> jax.Array:
    """`new` [B, …] for sequences where `new_where` bool [B] holds, else `old`."""
    return jnp.where(new_where.reshape(-1, *(1,) * (new.ndim - 1)), new, old)


def _noise_at(noise: jax.Array, places: jax.Array) -> jax.Array:
    """Noise [B, N, V] of the tokens at `places` int32 [B, N] after the root.

    Places after the last one get the last one's noise.
    """
    at = jnp.minimum(places, noise.shape[1] - 1)[..., None]
    return jnp.take_along_axis(noise, at, axis=1)
