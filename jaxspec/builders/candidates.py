"""Rank a drafter's candidates at every depth by its logits."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxspec.core.sampling.top_k import top_k
from jaxspec.core.state import Candidates


def rank(
    logits: jax.Array,
    count: int,
    noise: jax.Array | None = None,
    score_temperature: float | jax.Array = 1.0,
    with_entropy: bool = False,
) -> Candidates:
    """Return the `count` best tokens of every depth and their log-probabilities.

    Log-probabilities are normalised over the whole vocabulary.

    Args:
      logits: [B, depth, V], any float dtype; -inf excludes a token.
      count: C, at most V.
      noise: float32 [B, depth, V], the Gumbel noise under which the target will choose. With noise,
        tokens are ranked by logits + noise and scored by log_softmax((logits + noise) /
        score_temperature) (coupled drafting, in the spirit of Daliri, Musco and Suresh, arXiv
        2408.07978).
      score_temperature: divides the scores; it changes how paths of different depths compare, not
        the ranking.
      with_entropy: whether to return the entropy of every depth's scored distribution too.

    Returns:
      Candidates with token int32 and logprob float32 [B, depth, C]; among equal scores the lower
      token id comes first.
    """
    vocab = logits.shape[-1]
    if not 1 <= count <= vocab:
        raise ValueError(
            f"{count} candidates asked of a vocabulary of {vocab}: ask for 1 to {vocab}"
        )
    scores = logits.astype(jnp.float32)
    if noise is not None:
        scores = scores + noise
    scores = scores / score_temperature
    best, token = top_k(scores, count)
    total = _logsumexp(scores, best[..., :1])
    logprob = jnp.where(best > -jnp.inf, jnp.minimum(best - total, 0.0), -jnp.inf)
    return Candidates(
        token=token, logprob=logprob, entropy=entropy(scores - total) if with_entropy else None
    )


def _logsumexp(scores: jax.Array, most: jax.Array) -> jax.Array:
    """Return the log of the summed exponentials of scores [..., V], given their largest [..., 1].

    A step of many nodes reads its scores from memory; this saves the pass that looks for it.
    """
    shift = jnp.where(jnp.isfinite(most), most, 0.0)
    return shift + jnp.log(jnp.sum(jnp.exp(scores - shift), axis=-1, keepdims=True))


def entropy(logprob: jax.Array) -> jax.Array:
    """Return the entropy in nats, float32 [...], of log-probabilities [..., V].

    It is 0 where no token is possible.
    """
    p = jnp.exp(logprob)
    return -jnp.sum(jnp.where(p > 0, p * logprob, 0.0), axis=-1)
