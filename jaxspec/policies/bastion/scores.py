"""What a path's score is worth: how often paths of that depth and score were accepted, learned
while decoding.

A drafter that is too sure of itself, or too little, makes the sum of path probabilities a poor
estimate of what a tree will commit, and coupled drafting at temperature > 0 changes what a score
means. Every verified node says how it went: its raw path probability falls into a bin of its depth,
and the bin's acceptance rate, made non-decreasing over the bins (isotonic regression by
pool-adjacent-violators), corrects the probabilities in it.
"""

from __future__ import annotations

import flax.struct
import jax
import jax.numpy as jnp

# Bins of a path's log-probability: of equal width in nats down to SPAN, the last one open.
BINS = 16
SPAN = 8.0
# Verified nodes that a bin's raw probabilities count for before any were seen, and how fast old
# rounds are forgotten.
PRIOR = 8.0
KEEP = 0.998


@flax.struct.dataclass
class ScoreState:
    """Decayed counts and the correction that follows from them; D deepest node, K bins.

    Attributes:
      count, expected, hits: float32 [D, K], verified nodes, the sum of their raw probabilities, and
        how many were accepted.
      ratio: float32 [D, K], what raw probabilities of the bin are multiplied by.
    """

    count: jax.Array
    expected: jax.Array
    hits: jax.Array
    ratio: jax.Array


def init_scores(depth: int) -> ScoreState:
    """No evidence: raw probabilities hold."""
    zeros = jnp.zeros((depth, BINS), jnp.float32)
    return ScoreState(zeros, zeros, zeros, zeros + 1)


def corrected(state: ScoreState, logprob: jax.Array, depth: jax.Array) -> jax.Array:
    """Acceptance probabilities float32 [..., N] of nodes with cumulative `logprob` and `depth`
    (roots: 1, padding: 0).
    """
    raw = jnp.exp(logprob)
    node = state.ratio[jnp.maximum(depth - 1, 0), _bin(logprob)]
    return jnp.where(depth > 0, jnp.minimum(raw * node, 1.0), raw)


def observed(
    state: ScoreState, logprob: jax.Array, depth: jax.Array, accepted: jax.Array
) -> ScoreState:
    """Counts after a round's verified nodes; the correction stays as it is until `refreshed`.

    Args:
      logprob, depth: [B, N], of the verified trees; roots, padding and rows left out of
        verification have -inf or depth 0.
      accepted: bool [B, N], nodes on the accepted path.
    """
    used = (depth > 0) & (logprob > -jnp.inf)
    place = jnp.where(used, (depth - 1) * BINS + _bin(logprob), -1).reshape(-1, 1)
    figures = jnp.stack(
        [jnp.ones_like(logprob), jnp.exp(logprob), accepted.astype(jnp.float32)]
    ).reshape(3, -1)
    # A product, for a scatter would add the few nodes one after the other.
    cells = (place == jnp.arange(state.count.size)).astype(jnp.float32)
    count, expected, hits = jnp.dot(figures, cells, precision="highest").reshape(
        3, *state.count.shape
    )
    return state.replace(
        count=KEEP * state.count + count,
        expected=KEEP * state.expected + expected,
        hits=KEEP * state.hits + hits,
    )


def refreshed(state: ScoreState) -> ScoreState:
    """The correction that the counts call for."""
    middle = jnp.exp(-SPAN / BINS * (jnp.arange(BINS) + 0.5))
    mean = jnp.where(state.count > 0, state.expected / jnp.maximum(state.count, 1e-6), middle)
    weight = state.count + PRIOR
    # Bins run from likely to unlikely: rates must not increase over them.
    rate = isotonic((state.hits + PRIOR * mean)[:, ::-1] / weight[:, ::-1], weight[:, ::-1])[
        :, ::-1
    ]
    return state.replace(ratio=rate / mean)


def isotonic(value: jax.Array, weight: jax.Array) -> jax.Array:
    """The non-decreasing float32 [..., K] nearest to `value` in weighted squares.

    By the min-max formula, entry i is the largest over j <= i of the smallest over k >= i of the
    mean of entries j..k: K * K means, which for a few bins is faster on a device than pooling one
    violator at a time.
    """
    size = value.shape[-1]
    total = jnp.pad(jnp.cumsum(value * weight, -1), [(0, 0)] * (value.ndim - 1) + [(1, 0)])
    mass = jnp.pad(jnp.cumsum(weight, -1), [(0, 0)] * (value.ndim - 1) + [(1, 0)])
    first, last = jnp.arange(size)[:, None], jnp.arange(size)[None]
    spread = mass[..., None, 1:] - mass[..., :-1, None]
    mean = (total[..., None, 1:] - total[..., :-1, None]) / jnp.where(first <= last, spread, 1.0)
    # lowest[j, i]: the smallest mean of j..k over k >= i.
    lowest = jax.lax.cummin(
        jnp.where(first <= last, mean, jnp.inf), axis=mean.ndim - 1, reverse=True
    )
    return jnp.max(jnp.where(first <= last, lowest, -jnp.inf), axis=-2)


def _bin(logprob: jax.Array) -> jax.Array:
    return jnp.clip(-logprob * (BINS / SPAN), 0, BINS - 1).astype(jnp.int32)
