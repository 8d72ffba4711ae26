"""Draft: run the drafter after the root, then step by step after the nodes that the builder picks."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxspec.builders import StepCandidates
from jaxspec.core.state import DecodeState, Nodes
from jaxspec.drafters.base import Proposal
from jaxspec.drafters.registry import record_of
from jaxspec.round.context import Round
from jaxspec.round.lookahead import Foreseen, choose_states, is_certain, look_up
from jaxspec.round.proposals import Drafted, count_slots, limit_depth, propose, rank_candidates
from jaxspec.round.sizes import run_smallest
from jaxspec.round.stop_rule import (
    Sources,
    apply_stop_rule,
    asks_policy,
    choose_where,
    init_sources,
    look_back,
    record_sources,
)
from pallas_kernels.aot import FALLBACK

# Layers of all steps of a round up to which a GPU's program repeats the step. Beyond, a step is
# long against the work of the host, and repeating it makes the compilation long.
_UNROLLED = 32


class _Growing(NamedTuple):
    """The carry of the draft steps.

    Attributes:
      step: int32 [], steps taken.
      grown: the tree so far.
      nodes: the nodes to draft from next.
      scratch: the drafter's own arrays of this round.
      logprob, below: see `Drafted`.
      sources: figures of the distributions that the policy reads.
    """

    step: jax.Array
    grown: Any
    nodes: Nodes
    scratch: Any
    logprob: jax.Array | None
    below: jax.Array | None
    sources: Sources | None


def draft(round: Round, state: DecodeState, noise: jax.Array | None) -> Drafted:
    """Run the drafter after the root, and after the nodes of a tree that grows in steps.

    Args:
      noise: float32 [B, A, V], noise of the tokens after the root; None for greedy decoding.
    """
    if round.plan.drafter is None:
        return Drafted(None)
    limit = limit_depth(round, state)
    growing, foreseen = _begin(round, state, noise, limit)
    if round.plan.steps:
        step = functools.partial(_step, round, state, noise, limit)
        take = functools.partial(_take_steps, most=round.plan.steps, layers=_layers(round))
        if foreseen is not None:
            quick = take(functools.partial(step, foreseen=foreseen), growing)
            fell_back = ~is_certain(foreseen, round.growth, quick.grown, limit).all()
            return _fall_back(fell_back, functools.partial(take, step), growing, quick)
        growing = take(step, growing)
    drafted = Drafted(growing.grown, growing.logprob, growing.below, growing.step)
    if growing.sources is not None:
        figures = look_back(growing.grown, growing.nodes, growing.sources)
        drafted = drafted._replace(figures=figures)
    return drafted._replace(scratch=growing.scratch)


def _fall_back(
    fell_back: jax.Array,
    take: Callable[[_Growing], _Growing],
    growing: _Growing,
    quick: _Growing,
) -> Drafted:
    """Return the `quick` tree, or take all steps from `growing` on where `fell_back` bool [] holds."""

    def again() -> tuple[Any, jax.Array]:
        grown = take(growing)
        return grown.grown, grown.step

    with jax.named_scope(FALLBACK):  # reports of compiled programs tell its cost apart
        grown, steps = jax.lax.cond(fell_back, again, lambda: (quick.grown, quick.step))
    return Drafted(grown, steps=steps, fell_back=fell_back)


def _layers(round: Round) -> int:
    """Return the number of layers that a step runs; 1 for drafters that are no transformers."""
    config = round.params.spec.drafter(round.config.drafter)
    return 1 if record_of(config).one_forward else getattr(config, "num_layers", 1)


def _take_steps(
    step: Callable[[_Growing], _Growing], growing: _Growing, most: int, layers: int
) -> _Growing:
    """Take up to `most` steps, while there are nodes to draft from."""

    def unfinished(growing: _Growing) -> jax.Array:
        return jnp.any(growing.nodes.live)

    def loop(growing: _Growing) -> _Growing:
        return jax.lax.while_loop(
            lambda growing: (growing.step < most) & unfinished(growing), step, growing
        )

    def unrolled(growing: _Growing) -> _Growing:
        def take(growing: _Growing, _: None) -> tuple[_Growing, None]:
            return jax.lax.cond(unfinished(growing), step, lambda same: same, growing), None

        return jax.lax.scan(take, growing, length=most, unroll=True)[0]

    if most * layers > _UNROLLED:
        return loop(growing)
    # On a GPU, a loop that the data end splits the round's command buffer and is driven by the
    # host, which costs about as much as a step of one layer. Branches stay inside the buffer.
    return jax.lax.platform_dependent(growing, cpu=loop, default=unrolled)


def _begin(
    round: Round, state: DecodeState, noise: jax.Array | None, limit: jax.Array
) -> tuple[_Growing, Foreseen | None]:
    """Draft after the root and start the tree; with a shortlist, also compute what it foresees."""
    config, growth, batch = round.config, round.growth, state.root.shape[0]
    if round.plan.blocks:
        grown, nodes = jax.vmap(growth.init)(_draft_block(round, state, noise), limit)
        return _Growing(jnp.int32(0), grown, nodes, None, None, None, None), None
    proposal, scratch = propose(round, state)
    proposal = _take_slots(proposal, growth.slots)
    known = below = None
    if growth.steps and config.acceptance == "rejection" and not config.sampling.greedy:
        slots = growth.slots * (1 + growth.steps * growth.nodes)
        known = jnp.full((batch, slots, round.params.spec.target.vocab_size), -jnp.inf)
    depth = jnp.zeros((batch, 1), jnp.int32)
    candidates, known = _rank_step(round, state, noise, proposal, depth, known, 0)
    grown, nodes = jax.vmap(growth.init)(candidates, limit)
    if known is not None and growth.nodes and growth.candidates > 1:
        below = jnp.zeros(grown.token.shape, jnp.int32)
    sources = foreseen = None
    if asks_policy(round):
        carries = round.policy.act.carry is not None
        sources = init_sources(proposal, count_slots(round), round.policy.needs, carries)
        sources = record_sources(sources, proposal, 0)
        grown, nodes, sources = apply_stop_rule(round, state, 0, grown, nodes, sources, ~state.done)
    if growth.shortlist:
        states = choose_states(round, state, noise, scratch, candidates)
        proposal, _ = _expand(round, state, scratch, states, jnp.int32(0))
        offered, _ = _rank_step(round, state, noise, proposal, states.depth, None, 0)
        foreseen = Foreseen(states, offered)
    return _Growing(jnp.int32(0), grown, nodes, scratch, known, below, sources), foreseen


def _draft_block(round: Round, state: DecodeState, noise: jax.Array | None) -> StepCandidates:
    """Draft the smallest compiled block that holds what the policy chose for every sequence.

    The block decides how much is computed: rows of the draft network, of the output projection and
    of the ranking. Slots after the block get no candidates.
    """
    slots, root = round.growth.slots, jnp.zeros((state.root.shape[0], 1), jnp.int32)

    def of_size(size: int) -> Callable[[], StepCandidates]:
        def run() -> StepCandidates:
            proposal = _take_slots(propose(round, state, size)[0], size - 1)
            found, _ = _rank_step(round, state, noise, proposal, root, None, 0)
            after = (0, 0), (0, 0), (0, slots - (size - 1))
            none = functools.partial(jnp.pad, constant_values=-jnp.inf)
            return found.replace(
                token=jnp.pad(found.token, (*after, (0, 0))),
                logprob=none(found.logprob, (*after, (0, 0))),
                entropy=None if found.entropy is None else jnp.pad(found.entropy, after),
            )

        return run

    assert state.block is not None, "prefill asks the policy for block sizes"
    needed = jnp.max(jnp.where(state.done, 0, state.block))
    return run_smallest(needed, tuple(round.plan.blocks), [of_size(i) for i in round.plan.blocks])


def _step(
    round: Round,
    state: DecodeState,
    noise: jax.Array | None,
    limit: jax.Array,
    growing: _Growing,
    foreseen: Foreseen | None = None,
) -> _Growing:
    """Draft after the chosen nodes, or look them up, and let the builder choose the next ones."""
    growth = round.growth
    i, grown, nodes, scratch, known, below, sources = growing
    first = growth.slots + i * growth.nodes * growth.slots
    if foreseen is None:
        proposal, scratch = _expand(round, state, scratch, nodes, first)
        candidates, known = _rank_step(round, state, noise, proposal, nodes.depth, known, first)
    else:
        proposal, (nodes, candidates) = None, look_up(foreseen, nodes)
    if below is not None:
        slots = first + jnp.arange(growth.nodes)
        below = jax.vmap(lambda room, at, live: room.at[at].max(jnp.where(live, slots, 0)))(
            below, nodes.node, nodes.live
        )
    larger, following = jax.vmap(growth.grow, (0, 0, 0, None, 0))(
        grown, nodes, candidates, i, limit
    )
    if sources is not None and proposal is not None:
        # Sequences that stopped keep their tree while others' grow.
        on = nodes.live.any(1)
        larger, following = jax.tree.map(
            functools.partial(choose_where, on), (larger, following), (grown, nodes)
        )
        sources = record_sources(sources, proposal, first)
        larger, following, sources = apply_stop_rule(
            round, state, i + 1, larger, following, sources, on
        )
    return _Growing(i + 1, larger, following, scratch, known, below, sources)


def _expand(
    round: Round, state: DecodeState, scratch: Any, nodes: Nodes, first: jax.Array
) -> tuple[Proposal, Any]:
    """Run the drafter after `nodes`, whose first slot has the number `first`."""
    expand = round.drafter.expand
    assert expand is not None, "only a drafter that expands nodes is bound to draft steps"
    proposal, scratch = expand(
        round.drafter_variables, state.draft, scratch, round.target_head, nodes, first
    )
    return _take_slots(proposal, round.growth.slots), scratch


def _rank_step(
    round: Round,
    state: DecodeState,
    noise: jax.Array | None,
    proposal: Proposal,
    depth: jax.Array,
    known: jax.Array | None,
    start: jax.Array | int,
) -> tuple[StepCandidates, jax.Array | None]:
    """Rank the candidates of a step and collect the draft's log-probabilities.

    Args:
      depth: int32 [B, M], depths of the nodes drafted from; the root's is 0.
      known: float32 [B, depth, V], log-probabilities of all steps, or None if one step gives all.
      start: number of the step's first slot, a row of `known`.
    """
    batch, nodes, slots, vocab = proposal.logits.shape
    ours = noise
    if noise is not None and round.plan.in_steps:
        ours = _noise_at(noise, (depth[..., None] + jnp.arange(slots)).reshape(batch, -1))
    flat = proposal.logits.reshape(batch, -1, vocab)
    ranked, logprob = rank_candidates(round, state, ours, flat, start)
    if known is not None and logprob is not None:
        logprob = jax.lax.dynamic_update_slice(known, logprob, (0, start, 0))
    token, score = (x.reshape(batch, nodes, slots, -1) for x in (ranked.token, ranked.logprob))
    if round.growth.confidence:
        assert proposal.confidence is not None, "the builder is bound to a drafter that gives it"
        chance = jax.nn.log_sigmoid(proposal.confidence)[..., None]
        score = jnp.where(score > -jnp.inf, chance, -jnp.inf)
    entropy = None if ranked.entropy is None else ranked.entropy.reshape(batch, nodes, slots)
    return StepCandidates(token, score, proposal.classes, entropy), logprob


def _take_slots(proposal: Proposal, slots: int) -> Proposal:
    """Keep the first `slots` slots of each node's proposal."""
    return jax.tree.map(lambda part: part[:, :, :slots], proposal)


def _noise_at(noise: jax.Array, places: jax.Array) -> jax.Array:
    """Look up the noise [B, N, V] of tokens `places` int32 [B, N] after the root.

    Places beyond the last get the noise of the last.
    """
    at = jnp.minimum(places, noise.shape[1] - 1)[..., None]
    return jnp.take_along_axis(noise, at, axis=1)
