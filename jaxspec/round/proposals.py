"""Proposals: run the drafter's first forward pass and rank its candidates for the builder."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxspec.acceptance import sample_candidates
from jaxspec.builders import StepCandidates
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
      scores: float32 [B, P], of the pool's nodes, at the scale that the policy reads; None if these
        are the pool's own.
      offered: candidates [B, 1, K, C] of a tree from one proposal, if the policy reads their scores.
      frontier: int32 [B, M], the pool's nodes to draft from after the last step of each sequence,
        if the policy follows the steps.
      figures: what it reads of them, by name, see `Observation`.
      sources: the same figures of all distributions of the round.
    """

    grown: Any
    logprob: jax.Array | None = None
    below: jax.Array | None = None
    steps: jax.Array | int = 0
    fell_back: jax.Array | bool = False
    scratch: Any = None
    scores: jax.Array | None = None
    offered: StepCandidates | None = None
    frontier: jax.Array | None = None
    figures: dict[str, jax.Array] | None = None
    sources: Any = None

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
    columns: bool = False,
) -> tuple[Candidates, jax.Array | None]:
    """Rank the candidates of draft logits.

    Args:
      noise: float32 [B, ≥ D, V], noise of the same tokens; None for greedy decoding.
      logits: [B, D, V].
      start: number of the round's slots before the first of these.
      columns: whether `logits`, and `noise`, are of the tokens of `Proposal.tokens`.

    Returns:
      (candidates, the draft's log-probabilities float32 [B, D, V] for acceptance `rejection`).
    """
    config, request, growth = round.config, round.request, round.growth
    count, with_entropy = growth.candidates, growth.entropy
    if columns:
        ours = noise if round.coupled else None
        return rank(logits, count, ours, round.score_temperature, with_entropy), None
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


def score_candidates(
    logits: jax.Array, token: jax.Array, logprob: jax.Array, scale: float
) -> jax.Array:
    """Score a step's candidates at the scale that a policy reads: float32 [B, D, C].

    Args:
      logits: [B, D, V], the drafter's own.
      token: int32 [B, D, C].
      logprob: float32 [B, D, C], scores of the tree; candidates of -inf stay unusable.
      scale: divisor of the logits.
    """
    logits = logits.astype(jnp.float32) / scale
    whole = jax.nn.logsumexp(logits, axis=-1, keepdims=True)
    scores = jnp.take_along_axis(logits, token, axis=-1) - whole
    return jnp.where(logprob > -jnp.inf, jnp.minimum(scores, 0.0), -jnp.inf)


def rank_step(
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
    if proposal.tokens is not None and round.config.acceptance == "rejection":
        proposal = _spread(proposal, round.params.spec.target.vocab_size)
    batch, nodes, slots, vocab = proposal.logits.shape
    flat, tokens, ours = proposal.logits.reshape(batch, -1, vocab), proposal.tokens, noise
    if tokens is not None:
        tokens = tokens.reshape(flat.shape)
    if noise is not None and (round.plan.in_steps or tokens is not None):
        places = (depth[..., None] + jnp.arange(slots)).reshape(batch, -1)
        ours = noise_at(noise, places, tokens)
    ranked, logprob = rank_candidates(round, state, ours, flat, start, tokens is not None)
    if known is not None and logprob is not None:
        logprob = jax.lax.dynamic_update_slice(known, logprob, (0, start, 0))
    named = ranked.token
    if tokens is not None:
        named = jnp.take_along_axis(tokens, named, axis=-1)
    token, score = (x.reshape(batch, nodes, slots, -1) for x in (named, ranked.logprob))
    if round.growth.confidence:
        assert proposal.confidence is not None, "the builder is bound to a drafter that gives it"
        chance = jax.nn.log_sigmoid(proposal.confidence)[..., None]
        score = jnp.where(score > -jnp.inf, chance, -jnp.inf)
    entropy = None if ranked.entropy is None else ranked.entropy.reshape(batch, nodes, slots)
    scores, scale = None, round.score_scale
    if scale is not None:
        scores = score_candidates(flat, ranked.token, ranked.logprob, scale).reshape(score.shape)
    return StepCandidates(token, score, proposal.classes, entropy, scores), logprob


def take_slots(proposal: Proposal, slots: int) -> Proposal:
    """Keep the first `slots` slots of each node's proposal."""
    return jax.tree.map(lambda part: part[:, :, :slots], proposal)


def noise_at(noise: jax.Array, places: jax.Array, tokens: jax.Array | None = None) -> jax.Array:
    """Look up the noise [B, N, V] of tokens `places` int32 [B, N] after the root.

    Places beyond the last get the noise of the last.

    Args:
      tokens: int32 [B, N, C]; the noise of these alone, [B, N, C].
    """
    at = jnp.minimum(places, noise.shape[1] - 1)[..., None]
    if tokens is None:
        return jnp.take_along_axis(noise, at, axis=1)
    return jax.vmap(lambda noise, at, tokens: noise[at, tokens])(noise, at, tokens)


def _spread(proposal: Proposal, vocab_size: int) -> Proposal:
    """Return a proposal of few tokens with logits of the whole vocabulary."""
    tokens, logits = proposal.tokens, proposal.logits
    assert tokens is not None
    flat = tokens.reshape(-1, tokens.shape[-1]), logits.reshape(-1, tokens.shape[-1])
    empty = jnp.full(vocab_size, -jnp.inf, logits.dtype)
    whole = jax.vmap(lambda token, logit: empty.at[token].max(logit))(*flat)
    return proposal._replace(logits=whole.reshape(*logits.shape[:-1], vocab_size), tokens=None)


def limit_depth(round: Round, state: DecodeState) -> jax.Array:
    """Return the largest depth of each sequence's tree, int32 [B]; 0 for finished sequences."""
    longest = jnp.int32(round.growth.longest)
    if state.block is not None:
        longest = jnp.minimum(longest, state.block - 1)
    if round.request.deepest is not None:
        longest = jnp.minimum(longest, round.request.deepest)
    return jnp.where(state.done, 0, longest)
