"""Draft: run the drafter after the root, then step by step after the nodes that the builder picks."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxspec.builders import StepCandidates
from jaxspec.core.state import DecodeState, Nodes, Pool
from jaxspec.drafters.base import Proposal
from jaxspec.drafters.registry import record_of
from jaxspec.round.context import Round
from jaxspec.round.grow import score_pool
from jaxspec.round.lookahead import (
    Foreseen,
    choose_conditions,
    choose_states,
    is_certain,
    look_up,
    uses_conditions,
)
from jaxspec.round.proposals import (
    Drafted,
    count_slots,
    limit_depth,
    propose,
    rank_step,
    take_slots,
)
from jaxspec.round.sizes import run_smallest
from jaxspec.round.stop_rule import (
    Sources,
    apply_stop_rule,
    choose_where,
    init_sources,
    record_sources,
    select_sources,
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
      scores, offered: see `Drafted`.
    """

    step: jax.Array
    grown: Any
    nodes: Nodes
    scratch: Any
    logprob: jax.Array | None
    below: jax.Array | None
    sources: Sources | None
    scores: jax.Array | None = None
    offered: StepCandidates | None = None


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
            if round.growth.shortlist:
                fell_back = ~is_certain(foreseen, round.growth, quick.grown, limit).all()
                return _fall_back(fell_back, functools.partial(take, step), growing, quick)
            growing = quick
        else:
            growing = take(step, growing)
    drafted = Drafted(growing.grown, growing.logprob, growing.below, growing.step)
    drafted = drafted._replace(
        scratch=growing.scratch, scores=growing.scores, offered=growing.offered
    )
    if growing.sources is None:
        return drafted
    last = growing.nodes
    figures = select_sources(growing.sources, last.source)
    return drafted._replace(frontier=last.node, figures=figures, sources=growing.sources)


def _fall_back(
    fell_back: jax.Array,
    take: Callable[[_Growing], _Growing],
    growing: _Growing,
    quick: _Growing,
) -> Drafted:
    """Return the `quick` tree, or take all steps from `growing` on where `fell_back` bool [] holds."""

    def again() -> tuple[Any, jax.Array, jax.Array | None]:
        grown = take(growing)
        return grown.grown, grown.step, grown.scores

    found = quick.grown, quick.step, quick.scores
    with jax.named_scope(FALLBACK):  # reports of compiled programs tell its cost apart
        grown, steps, scores = jax.lax.cond(fell_back, again, lambda: found)
    return Drafted(grown, steps=steps, fell_back=fell_back, scores=scores)


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
    """Draft after the root and start the tree.

    With a shortlist, or a drafter that conditions on few tokens, also compute the distributions of
    all steps.
    """
    config, growth, batch = round.config, round.growth, state.root.shape[0]
    if round.plan.blocks:
        candidates = _draft_block(round, state, noise)
        grown, nodes = jax.vmap(growth.init)(candidates, limit)
        begun = _Growing(jnp.int32(0), grown, nodes, None, None, None, None)
        return begun._replace(offered=_keep(round, candidates)), None
    proposal, scratch = propose(round, state)
    proposal = take_slots(proposal, growth.slots)
    known = below = None
    if growth.steps and config.acceptance == "rejection" and not config.sampling.greedy:
        slots = growth.slots * (1 + growth.steps * growth.nodes)
        known = jnp.full((batch, slots, round.params.spec.target.vocab_size), -jnp.inf)
    depth = jnp.zeros((batch, 1), jnp.int32)
    candidates, known = rank_step(round, state, noise, proposal, depth, known, 0)
    grown, nodes = jax.vmap(growth.init)(candidates, limit)
    if known is not None and growth.nodes and growth.candidates > 1:
        below = jnp.zeros(grown.token.shape, jnp.int32)
    scores = sources = foreseen = None
    if candidates.scores is not None and growth.nodes:
        scores = _score_first(state, grown, candidates)
    if round.plan.asks_policy:
        carries = round.policy.act.carry is not None
        sources = init_sources(proposal, count_slots(round), round.policy.needs, carries)
        sources = record_sources(sources, proposal, 0, round.figure_scale)
        on = ~state.done
        grown, nodes, sources = apply_stop_rule(round, state, 0, grown, scores, nodes, sources, on)
    states = None
    if growth.shortlist:
        states = choose_states(round, state, noise, scratch, candidates)
    elif uses_conditions(round):
        states = choose_conditions(round, state, scratch)
    if states is not None:
        proposal, _ = _expand(round, state, scratch, states, jnp.int32(0))
        found, _ = rank_step(round, state, noise, proposal, states.depth, None, 0)
        foreseen = Foreseen(states, found)
    begun = _Growing(jnp.int32(0), grown, nodes, scratch, known, below, sources, scores)
    return begun._replace(offered=_keep(round, candidates)), foreseen


def _keep(round: Round, candidates: StepCandidates) -> StepCandidates | None:
    """Keep scored candidates of a tree that is built from one proposal, see `Drafted.offered`."""
    return None if round.growth.nodes or candidates.scores is None else candidates


def _score_first(state: DecodeState, pool: Pool, offered: StepCandidates) -> jax.Array:
    """Score the nodes of a pool after the root's step, see `score_pool`: float32 [B, P]."""
    none = jnp.zeros((*state.root.shape, 1), jnp.int32)
    root = Nodes(state.root[:, None], none, none, none - 1, none == 0)
    empty = jnp.full_like(pool.logprob, -jnp.inf)
    return jax.vmap(score_pool)(empty, empty, pool, root, offered)


def _draft_block(round: Round, state: DecodeState, noise: jax.Array | None) -> StepCandidates:
    """Draft the smallest compiled block that holds what the policy chose for every sequence.

    The block decides how much is computed: rows of the draft network, of the output projection and
    of the ranking. Slots after the block get no candidates.
    """
    slots, root = round.growth.slots, jnp.zeros((state.root.shape[0], 1), jnp.int32)

    def of_size(size: int) -> Callable[[], StepCandidates]:
        def run() -> StepCandidates:
            proposal = take_slots(propose(round, state, size)[0], size - 1)
            found, _ = rank_step(round, state, noise, proposal, root, None, 0)
            after = (0, 0), (0, 0), (0, slots - (size - 1))
            none = functools.partial(jnp.pad, constant_values=-jnp.inf)
            return found.replace(
                token=jnp.pad(found.token, (*after, (0, 0))),
                logprob=none(found.logprob, (*after, (0, 0))),
                scores=None if found.scores is None else none(found.scores, (*after, (0, 0))),
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
    i, grown, nodes, scratch, known, below, sources, scores, _ = growing
    first = growth.slots + i * growth.nodes * growth.slots
    if foreseen is None:
        proposal, scratch = _expand(round, state, scratch, nodes, first)
        candidates, known = rank_step(round, state, noise, proposal, nodes.depth, known, first)
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
    on = nodes.live.any(1)
    if sources is not None and proposal is not None:
        # Sequences that stopped keep their tree while others' grow.
        larger, following = jax.tree.map(
            functools.partial(choose_where, on), (larger, following), (grown, nodes)
        )
    if scores is not None:
        before = grown.logprob
        scores = jax.vmap(score_pool)(scores, before, larger, nodes, candidates)
    if sources is not None and proposal is not None:
        sources = record_sources(sources, proposal, first, round.figure_scale)
        larger, following, sources = apply_stop_rule(
            round, state, i + 1, larger, scores, following, sources, on
        )
    return _Growing(i + 1, larger, following, scratch, known, below, sources, scores)


def _expand(
    round: Round, state: DecodeState, scratch: Any, nodes: Nodes, first: jax.Array
) -> tuple[Proposal, Any]:
    """Run the drafter after `nodes`, whose first slot has the number `first`."""
    expand = round.drafter.expand
    assert expand is not None, "only a drafter that expands nodes is bound to draft steps"
    proposal, scratch = expand(
        round.drafter_variables, state.draft, scratch, round.target_head, nodes, first
    )
    return take_slots(proposal, round.growth.slots), scratch
