"""Correct path scores by measured acceptance at the same depth and score, while decoding.

If a drafter is too confident, or not confident enough, the sum of path probabilities is a poor
estimate of the tokens that a tree commits. Coupled drafting at temperature > 0 also changes the
meaning of a score. Every verified node is evidence: its raw path probability falls into a bin of
its depth. The bins' acceptance rates, made non-decreasing by isotonic regression
(pool-adjacent-violators), correct the probabilities in them.
"""

from __future__ import annotations

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.policies.registry import tagged

# Bins of a path's log-probability: equal widths in nats down to SPAN; the last bin is open.
BINS = 16
SPAN = 8.0
# Weight of a bin's raw probabilities, in verified nodes; and the decay of old rounds.
PRIOR = 8.0
KEEP = 0.998


@tagged("bastion-scores")
class ScoreState(flax.struct.PyTreeNode):
    """Decayed counts and the correction that follows from them; D depths, K bins.

    Attributes:
      count: float32 [D, K], verified nodes.
      expected: float32 [D, K], sum of their raw probabilities.
      hits: float32 [D, K], accepted nodes.
      ratio: float32 [D, K], factor of raw probabilities in the bin.
    """

    count: jax.Array
    expected: jax.Array
    hits: jax.Array
    ratio: jax.Array


def init_scores(depth: int) -> ScoreState:
    """Make the state without evidence, which does not change raw probabilities."""
    zeros = np.zeros((depth, BINS), np.float32)
    return ScoreState(zeros, zeros, zeros, zeros + 1)


def correct_scores(state: ScoreState, logprob: jax.Array, depth: jax.Array) -> jax.Array:
    """Compute acceptance probabilities float32 [..., N] of nodes; 1 for roots, 0 for padding.

    Args:
      state: the correction.
      logprob: float32 [..., N], cumulative.
      depth: int32 [..., N], 0 for roots and padding.
    """
    raw = jnp.exp(logprob)
    node = state.ratio[jnp.maximum(depth - 1, 0), _bin(logprob)]
    return jnp.where(depth > 0, jnp.minimum(raw * node, 1.0), raw)


def count_verified_nodes(
    state: ScoreState, logprob: jax.Array, depth: jax.Array, accepted: jax.Array
) -> ScoreState:
    """Count a round's verified nodes; `refresh_ratios` then updates the correction.

    Args:
      state: before the round.
      logprob, depth: [B, N], of the verified trees; roots, padding and rows that were not verified
        have -inf or depth 0.
      accepted: bool [B, N], nodes on the accepted path.
    """
    used = (depth > 0) & (logprob > -jnp.inf)
    place = jnp.where(used, (depth - 1) * BINS + _bin(logprob), -1).reshape(-1, 1)
    figures = jnp.stack(
        [jnp.ones_like(logprob), jnp.exp(logprob), accepted.astype(jnp.float32)]
    ).reshape(3, -1)
    # Use a product: a scatter would add the nodes one by one.
    cells = (place == jnp.arange(state.count.size)).astype(jnp.float32)
    count, expected, hits = jnp.dot(figures, cells, precision="highest").reshape(
        3, *state.count.shape
    )
    return state.replace(
        count=KEEP * state.count + count,
        expected=KEEP * state.expected + expected,
        hits=KEEP * state.hits + hits,
    )


def refresh_ratios(state: ScoreState) -> ScoreState:
    """Update the correction from the counts."""
    middle = jnp.exp(-SPAN / BINS * (jnp.arange(BINS) + 0.5))
    mean = jnp.where(state.count > 0, state.expected / jnp.maximum(state.count, 1e-6), middle)
    weight = state.count + PRIOR
    # Bins are ordered from likely to unlikely, so rates must not increase.
    rate = fit_isotonic((state.hits + PRIOR * mean)[:, ::-1] / weight[:, ::-1], weight[:, ::-1])[
        :, ::-1
    ]
    return state.replace(ratio=rate / mean)


def fit_isotonic(value: jax.Array, weight: jax.Array) -> jax.Array:
    """Fit the non-decreasing float32 [..., K] nearest to `value` in weighted squares.

    By the min-max formula, entry i is the largest over j <= i of the smallest over k >= i of the
    mean of entries j..k. For a few bins, these K * K means are faster on a device than pooling one
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
