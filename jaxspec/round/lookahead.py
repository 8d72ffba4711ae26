"""Foresee which nodes a tree will be drafted from, and compute all their distributions at once.

With DSpark's vanilla and gated heads, a node's distribution depends on its depth and its token
alone. Then a tree needs one distribution for each *state*, a depth and a token, and no state
matters unless the best path that ends in it does. So the states with the best such paths are
enough: as many as the tree has nodes. Among a shortlist of tokens per depth these paths are found
by the Viterbi algorithm, from a product of shortlists with each other. One product with the whole
vocabulary then gives the distributions of the states that it finds; level by level, it takes one
product for each level.

A shortlist only foresees. The tree grows level by level as without it, by exact distributions, but
from foreseen nodes alone. Nodes that were not foreseen get no children, so at worst they are
missing in the tree, and what is in it has its exact score. The tree is certainly the exact one if
every node that is not the tree's last and may have children was foreseen: whatever is missing comes
after some other node, which then comes after the tree's. Without this certificate the steps are
taken again, and every level computes its own nodes.

The foresight is not exact, since the mass of the tokens outside a shortlist is taken without what
the tokens before them add, so somewhat more states are computed than matter.

TreeFlash needs no foresight: its tables hold a few states of every depth, by definition. They are
chosen by its own rule, and what is not among them stays a leaf.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxspec.builders import Growth, StepCandidates
from jaxspec.core.sampling.top_k import top_k
from jaxspec.core.state import DecodeState, Nodes, Pool
from jaxspec.round.adjust_logits import adjust_drafts
from jaxspec.round.context import Round


class Foreseen(NamedTuple):
    """Distributions of the states that were computed at once.

    Attributes:
      nodes: the states, [B, P]; only depth and token matter.
      candidates: of the states, [B, P, 1, C].
    """

    nodes: Nodes
    candidates: StepCandidates


def choose_states(
    round: Round,
    state: DecodeState,
    noise: jax.Array | None,
    scratch: object,
    first: StepCandidates,
) -> Nodes:
    """Choose the states whose best paths are the most probable ones.

    Args:
      noise: float32 [B, A, V], noise of the tokens after the root, or None.
      scratch: the drafter's, after its `start`.
      first: candidates after the root, [B, 1, 1, C].

    Returns:
      Nodes [B, P], P = `Growth.foreseen`.
    """
    growth, look_ahead = round.growth, round.drafter.look_ahead
    assert look_ahead is not None, "the builder is bound to a drafter that looks ahead"
    look, count = look_ahead(round.drafter_variables, scratch), growth.shortlist
    # Nodes of the last depth are not drafted from.
    levels = slice(1, growth.longest - 1)
    scale = divisor = round.score_temperature
    logits = adjust_drafts(round, state, look.logits[:, levels]).astype(jnp.float32)
    if not round.config.sampling.greedy:
        temperature = jnp.float32(round.request.sampling.temperature)
        if round.config.sampling.mixed:
            temperature = jnp.where(round.decodes_greedily, 1.0, temperature)[:, None, None]
        logits, divisor = logits / temperature, divisor * temperature
        if noise is not None and round.coupled:
            logits += noise[:, levels]
    scores = logits / scale
    best, token = top_k(scores, count)
    ends, logprob = (_fit(x[:, 0, 0], count) for x in (first.token, first.logprob))
    token = jnp.concatenate([ends[:, None], token], axis=1)
    added = look.between(token[:, :-1], token[:, 1:]).astype(jnp.float32)
    added /= jnp.reshape(divisor, (-1, 1, 1, 1)) if jnp.ndim(divisor) else divisor
    edges = _normalise(best[:, :, None] + added, best, scores)
    paths = _best_paths(
        jnp.where(jnp.arange(count) < first.token.shape[-1], logprob, -jnp.inf), edges
    )
    chosen = top_k(paths.reshape(len(paths), -1), growth.foreseen)[1]
    return Nodes(
        jnp.take_along_axis(token.reshape(len(token), -1), chosen, axis=1),
        jnp.zeros_like(chosen),
        1 + chosen // count,
        jnp.zeros_like(chosen),
        jnp.ones(chosen.shape, bool),
    )


def choose_conditions(round: Round, state: DecodeState, scratch: object) -> Nodes:
    """Choose the states that a drafter conditions on: each depth's most probable tokens.

    The target's noise takes no part: without the token before, a drafter knows too little for it,
    and sampled trees accepted up to 11 % less with it (the golden TreeFlash, T = 0.6).

    Args:
      scratch: the drafter's, after its `start`.

    Returns:
      Nodes [B, (longest - 1) M].
    """
    given = round.drafter.conditions
    assert given is not None, "tables are made for a drafter that conditions on few tokens"
    logits = given.logits(round.drafter_variables, scratch, round.target_head)
    scores = adjust_drafts(round, state, logits[:, : round.growth.longest - 1])
    token = top_k(scores.astype(jnp.float32), min(given.count, scores.shape[-1]))[1]
    depth = jnp.broadcast_to(1 + jnp.arange(token.shape[1])[:, None], token.shape)
    token, depth = (x.reshape(len(token), -1) for x in (token, depth))
    none = jnp.zeros_like(token)
    return Nodes(token, none, depth, none, none == 0)


def uses_conditions(round: Round) -> bool:
    """Whether a round computes all distributions after the root's at once, as tables.

    A policy that follows the steps and true rejection sampling read each step's own distributions.
    """
    config = round.config
    drawn = config.acceptance == "rejection" and not config.sampling.greedy
    there = round.growth.nodes > 0 and round.drafter.conditions is not None
    return there and round.growth.longest > 1 and not drawn and not round.plan.asks_policy


def _fit(x: jax.Array, count: int) -> jax.Array:
    """Cut or pad x [B, C] to `count` columns."""
    return jnp.pad(x[:, :count], ((0, 0), (0, max(0, count - x.shape[1]))))


def _normalise(pairs: jax.Array, best: jax.Array, scores: jax.Array) -> jax.Array:
    """Estimate the log-probabilities of pairs of tokens.

    Args:
      pairs: float32 [B, T, M, M], scores of the tokens of a shortlist after each of those before.
      best: float32 [B, T, M], the shortlist's scores without the tokens before.
      scores: float32 [B, T, V], the same of all tokens.

    Returns:
      float32 [B, T, M, M].
    """
    whole = jax.nn.logsumexp(scores, axis=-1, keepdims=True)
    inside = jnp.exp(best - whole).sum(-1, keepdims=True)
    outside = whole + jnp.log(jnp.maximum(1 - inside, 1e-9))
    total = jnp.logaddexp(jax.nn.logsumexp(pairs, axis=-1), outside)
    return jnp.minimum(pairs - total[..., None], 0.0)


def _best_paths(first: jax.Array, edges: jax.Array) -> jax.Array:
    """Find the log-probability of the best path that ends in each state, float32 [B, T + 1, M].

    Args:
      first: float32 [B, M], log-probabilities of the states of depth 1.
      edges: float32 [B, T, M, M], log-probabilities of the states of a depth after those before.
    """
    levels = [first]
    for level in range(edges.shape[1]):
        levels.append((levels[-1][:, :, None] + edges[:, level]).max(axis=1))
    return jnp.stack(levels, axis=1)


def look_up(foreseen: Foreseen, nodes: Nodes) -> tuple[Nodes, StepCandidates]:
    """Look up the candidates of nodes.

    Returns:
      (`nodes`, of which only those that were foreseen are live; their candidates).
    """
    same = _same(foreseen, nodes.token, nodes.depth)
    at, live = same.argmax(-1), nodes.live & same.any(-1)
    found = jax.tree.map(lambda x: jax.vmap(lambda x, at: x[at])(x, at), foreseen.candidates)
    return nodes.replace(live=live), found


def is_certain(foreseen: Foreseen, growth: Growth, pool: Pool, limit: jax.Array) -> jax.Array:
    """Return whether trees that grew from foreseen nodes alone are the exact ones, bool [B].

    They are if every node was foreseen whose children could be in the tree, given the whole pool.

    Args:
      limit: int32 [B], depth limits.
    """
    assert growth.matters is not None, "a builder with a shortlist says which nodes matter"
    found = _same(foreseen, pool.token, pool.depth).any(-1)
    return (found | ~jax.vmap(growth.matters)(pool, limit)).all(-1)


def _same(foreseen: Foreseen, token: jax.Array, depth: jax.Array) -> jax.Array:
    """Compare nodes with states, bool [B, M, P]."""
    states = foreseen.nodes
    return (token[..., None] == states.token[:, None]) & (depth[..., None] == states.depth[:, None])
