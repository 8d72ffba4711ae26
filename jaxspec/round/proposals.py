"""Proposals: run the drafter's first forward pass and rank its candidates for the builder."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxspec.acceptance import sample_candidates
from jaxspec.builders.candidates import entropy, rank
from jaxspec.core.sampling.sampling import process
from jaxspec.core.state import Candidates, DecodeState, Pool
from jaxspec.drafters.base import Proposal
from jaxspec.round.adjust_logits import adjust_drafts, asks_now
from jaxspec.round.context import Round


class Drafted(NamedTuple):
    """What the drafter proposes.

    Attributes:
      grown: the builder's carry, see `jaxspec.builders.Growth`; None without a drafter.
      logprob: float32 [B, S, V], log-probabilities of the round's S slots, if acceptance needs
        them.
      below: int32 [B, P], the slot that proposed the children of every node of the pool, if the
        tree branched while it grew. None: the slot of a node's depth.
      steps: int32 [], draft steps after the root's.
      fell_back: bool [], whether a shortlist did not foresee what matters, so that all steps were
        taken again, see `jaxspec.round.lookahead`.
      scratch: the drafter's own arrays of the round; None if they are not kept.
      figures: what the policy reads of the last draft step, by name, see
        `Observation`; None if it reads none.
    """

    grown: Any
    logprob: jax.Array | None = None
    below: jax.Array | None = None
    steps: jax.Array | int = 0
    fell_back: jax.Array | bool = False
    scratch: Any = None
    figures: dict[str, jax.Array] | None = None

    @property
    def pool(self) -> Pool | None:
        """Return the nodes to choose the tree from, if it grew while the drafter ran."""
        return self.grown if isinstance(self.grown, Pool) else None


def count_slots(round: Round) -> int:
    """Count the slots that the drafter computes in a round, at most."""
    drafter, growth = round.drafter, round.growth
    # A drafter that takes steps computes all slots in the first, even if the tree holds fewer.
    slots = growth.slots if drafter.expand is None else drafter.slots
    return slots + growth.steps * growth.nodes * growth.slots


def propose(
    round: Round, state: DecodeState, block_size: int | None = None
) -> tuple[Proposal, Any]:
    """Run the drafter after the root.

    Args:
      block_size: draft a block of this size, one of `Plan.blocks`; None: the call's.

    Returns:
      (the proposal with logits [B, 1, K, V], the drafter's scratch).
    """
    size = {} if state.block is None else {"block": state.block}
    drafter = round.drafter if block_size is None else round.plan.blocks[block_size]
    return drafter.start(
        round.drafter_variables,
        state.draft,
        round.target_head,
        state.root,
        count_slots(round),
        **size,
    )


def rank_candidates(
    round: Round,
    state: DecodeState,
    noise: jax.Array | None,
    logits: jax.Array,
    start: jax.Array | int,
) -> tuple[Candidates, jax.Array | None]:
    """Rank the candidates of draft logits.

    Args:
      noise: float32 [B, ≥ D, V], noise of the same tokens; None for greedy decoding.
      logits: [B, D, V].
      start: number of the round's slots before the first of these.

    Returns:
      (candidates, the draft's log-probabilities float32 [B, D, V] for acceptance `rejection`).
    """
    config, request, growth = round.config, round.request, round.growth
    count, with_entropy = growth.candidates, growth.entropy
    if not config.sampling.mixed:
        logits = adjust_drafts(round, state, logits)

    def rank_greedily() -> Candidates:
        return rank(logits, count, None, round.score_temperatures[0], with_entropy)

    if config.sampling.greedy:
        return rank_greedily(), None
    if config.acceptance == "rejection":
        length = state.cache.length
        drawn, q = sample_candidates(
            logits, count, config.sampling, request.sampling, round.keys, length, start
        )
        return drawn.replace(entropy=entropy(q) if with_entropy else None), q

    def rank_sampled() -> Candidates:
        given = adjust_drafts(round, state, logits) if config.sampling.mixed else logits
        scores = process(given, config.sampling, request.sampling)
        ours = noise[:, : logits.shape[1]] if round.coupled and noise is not None else None
        return rank(scores, count, ours, round.score_temperature, with_entropy)

    if not config.sampling.mixed:
        return rank_sampled(), None
    # Greedy sequences alone need none of the passes over the vocabulary that settings take.
    plain = round.decodes_greedily.all() & ~asks_now(round, state)
    return jax.lax.cond(plain, rank_greedily, rank_sampled), None


def limit_depth(round: Round, state: DecodeState) -> jax.Array:
    """Return the largest depth of each sequence's tree, int32 [B]; 0 for finished sequences."""
    longest = jnp.int32(round.growth.longest)
    if state.block is not None:
        longest = jnp.minimum(longest, state.block - 1)
    if round.request.deepest is not None:
        longest = jnp.minimum(longest, round.request.deepest)
    return jnp.where(state.done, 0, longest)
