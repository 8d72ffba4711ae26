"""Draw candidates from the drafter, and accept them by rejection sampling."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import lax

from jaxspec.core.sampling import SamplingSpec, SamplingValues, gumbel, process
from jaxspec.core.state import Accepted, Candidates, Tree
from jaxspec.engine.acceptance.noise import CANDIDATES, fold_round_keys
from jaxspec.engine.acceptance.walk import accept_by_walk, find_children, walk_tree

RANK_DECAY = 0.3
"""Prior of `sample_candidates`: the candidate of rank r is accepted with probability (1 -
RANK_DECAY) RANK_DECAY^r.
"""


def accept_rejection(
    tree: Tree,
    logits: jax.Array,
    draft_logprob: jax.Array,
    spec: SamplingSpec,
    values: SamplingValues,
    keys: jax.Array,
    position: jax.Array,
    longest: int,
) -> Accepted:
    """Accept candidates that were drawn without replacement by recursive rejection sampling.

    Sources: Jeon et al. 2024; Yang et al. 2024. Children are tried in row order, which must be the
    order in which they were drawn. Child x is accepted with probability min(1, p(x) / q(x)).
    Otherwise p becomes max(p - q, 0), x is removed from q, and both are renormalised. If no child
    is accepted, the bonus is drawn from the remaining p. With one candidate per depth this is
    speculative sampling (Leviathan et al. 2023; Chen et al. 2023). The rule is lossless for
    candidates of `sample_candidates` in trees of a shape that does not depend on the tokens. Greedy
    decoding uses `accept_match`.

    Args:
      tree: tree of N rows; siblings are the first few candidates of their depth, in order.
      logits: [B, N, V], the target's unprocessed logits; only rows on the path are read.
      draft_logprob: float32 [B, depth, V], log-probabilities that the candidates were drawn with;
        [:, d] belongs to the children of nodes of depth d.
      spec, values: from `make_sampling`.
      keys: [B], one per sequence.
      position: int32 [B], absolute position of the root.
      longest: static; deeper nodes are not accepted.
    """
    walk = functools.partial(_walk_rejection, spec=spec, values=values, longest=longest)
    return accept_by_walk(walk, tree, logits, spec, values, keys, position, longest, draft_logprob)


def sample_candidates(
    draft_logits: jax.Array,
    count: int,
    spec: SamplingSpec,
    values: SamplingValues,
    keys: jax.Array,
    position: jax.Array,
    first: int | jax.Array = 0,
) -> tuple[Candidates, jax.Array]:
    """Draw `count` tokens per depth without replacement from the drafter by Gumbel-top-k.

    They come from the drafter's processed distributions. Greedy decoding gets the most likely
    tokens with their log-probabilities.

    Args:
      draft_logits: [B, depth, V].
      count: static, at most V.
      spec, values: from `make_sampling`.
      keys: [B], one per sequence.
      position: int32 [B], absolute position of the root.
      first: depth of the parents of draft_logits[:, 0], if several calls draw the candidates of a
        round.

    Returns:
      Candidates in the order drawn, and draft_logprob float32 [B, depth, V] for `accept_rejection`.
      The candidates' scores depend only on their rank (geometric with RANK_DECAY; -inf if the
      distribution has no further token): if the tree's shape depended on the sampled tokens, it
      would bias the output.
    """
    logprob = jax.nn.log_softmax(process(draft_logits, spec, values), axis=-1)
    if spec.greedy:
        best, token = lax.top_k(logprob, count)
        return Candidates(token=token.astype(jnp.int32), logprob=best), logprob
    depth = first + jnp.arange(draft_logits.shape[1])
    noise = gumbel(
        fold_round_keys(keys, position, CANDIDATES),
        jnp.broadcast_to(depth, draft_logits.shape[:2]),
        logprob.shape[-1],
    )
    drawn, token = lax.top_k(logprob + noise, count)
    prior = jnp.log1p(-RANK_DECAY) + jnp.arange(count) * jnp.log(RANK_DECAY)
    scores = jnp.where(jnp.isfinite(drawn), prior, -jnp.inf).astype(jnp.float32)
    return Candidates(token=token.astype(jnp.int32), logprob=scores), logprob


def _walk_rejection(
    tree: Tree,
    logits: jax.Array,
    draws: jax.Array,
    draft_logprob: jax.Array,
    *,
    spec: SamplingSpec,
    values: SamplingValues,
    longest: int,
) -> tuple[Accepted, jax.Array]:
    """Apply `accept_rejection` to one tree, without the bonus; `draws` float32 [N] are uniform."""
    rows = jnp.arange(tree.token.shape[0])

    def descend(
        row: jax.Array, depth: jax.Array, p: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        child = find_children(tree, row, depth, longest)

        def attempt(state: tuple) -> tuple:
            tried, _, p, q = state
            tried = jnp.argmax(child & (rows > tried)).astype(jnp.int32)
            token = tree.token[tried]
            accepted = draws[tried] * q[token] < p[token]
            # On acceptance nothing reads p and q any more.
            return (
                tried,
                accepted,
                _normalise(jnp.maximum(p - q, 0.0), p),
                _normalise(q.at[token].set(0.0), q),
            )

        def unfinished(state: tuple) -> jax.Array:
            tried, accepted, _, _ = state
            return ~accepted & (child & (rows > tried)).any()

        q = jnp.exp(draft_logprob[jnp.minimum(depth, draft_logprob.shape[0] - 1)])
        tried, accepted, left, _ = lax.while_loop(
            unfinished, attempt, (jnp.int32(0), jnp.bool_(False), p, q)
        )
        return accepted, tried, left

    return walk_tree(logits, spec, values, longest, descend)


def _normalise(weight: jax.Array, otherwise: jax.Array) -> jax.Array:
    """Scale `weight` to sum to 1; return `otherwise` if it is all zero."""
    total = weight.sum()
    return jnp.where(total > 0, weight / jnp.where(total > 0, total, 1.0), otherwise)
