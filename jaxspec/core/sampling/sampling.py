"""Temperature, top-k, top-p and min-p, and draft-invariant sampling: greedy decoding under known
noise.

At temperature T > 0 the token at position p of sequence s is argmax(process(logits) + G[s, p]),
where G is standard Gumbel noise that depends only on the seed, the sequence and the position. By
the Gumbel-max theorem this is an exact sample, and the text does not depend on the drafter, the
tree or the batch (drafter-invariant coupling: Daliri, Musco, Suresh, arXiv 2408.07978).

B sequences, N tree rows, P positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from jaxspec.core.sampling.filters import (
    FEW,
    find_threshold,
    find_threshold_of_few,
    find_top,
    measure_distance,
    measure_from,
)
from jaxspec.core.sampling.settings import MIN_TEMPERATURE, SamplingSpec, SamplingValues
from jaxspec.core.split_vocabulary import find_best, is_split


def process(logits: jax.Array, spec: SamplingSpec, values: SamplingValues) -> jax.Array:
    """Return the logits of the distribution to sample from.

    Apply temperature, then top-k, top-p and min-p, as transformers' warpers do. Each step sees the
    distribution that the previous one left. The thresholds are exact; all tokens tied with a
    threshold are kept (transformers keeps ties in top-k and min-p, but cuts through them by index
    in top-p).

    Args:
      logits: [..., V], any float dtype. NaN counts as -inf.
      spec, values: from `make_sampling`; or `MIXED` and values [B] for logits [B, ..., V], or
        values of the shape of the logits without V.

    Returns:
      float32 [..., V], shifted so that the largest is 0; -inf where excluded. Greedy decoding gets
      the logits unchanged, in float32.
    """
    if spec.greedy:
        return logits.astype(jnp.float32)
    if spec.mixed:
        return _process_mixed(logits.astype(jnp.float32), values)
    distance = measure_distance(logits.astype(jnp.float32), values.temperature)
    if spec.few:
        top_p = values.top_p if spec.top_p else None
        distance = _cut(distance, find_threshold_of_few(distance, values.top_k, top_p))
    else:
        if spec.top_k:
            counted = jnp.isfinite(distance).astype(jnp.float32)
            limit = values.top_k.astype(jnp.float32)
            distance = _cut(distance, find_threshold(distance, counted, limit))
        if spec.top_p:
            weight = jnp.exp(-distance)
            limit = values.top_p * weight.sum(-1)
            distance = _cut(distance, find_threshold(distance, weight, limit))
    if spec.min_p:
        distance = jnp.where(distance <= -jnp.log(values.min_p), distance, jnp.inf)
    return -distance


def _process_mixed(logits: jax.Array, values: SamplingValues) -> jax.Array:
    """Process logits [B, ..., V] by settings of each sequence."""
    shape = logits.shape[:-1]
    rows = [
        jnp.broadcast_to(x.reshape(x.shape + (1,) * (len(shape) - x.ndim)), shape)
        for x in (values.temperature, values.top_k, values.top_p, values.min_p)
    ]
    return process_mixed(logits, rows[0] < MIN_TEMPERATURE, tuple(rows))


def _cut(distance, threshold):
    """Exclude entries of `distance` [..., V] beyond `threshold` [...]."""
    return jnp.where(distance <= threshold[..., None], distance, jnp.inf)


def draw(
    logits: jax.Array,
    noise: jax.Array | None,
    depth: jax.Array,
    spec: SamplingSpec,
    values: SamplingValues,
) -> jax.Array:
    """Choose the target's own token after each tree row: argmax(process(logits) + noise).

    The lower id wins ties.

    Args:
      logits: [B, N, V].
      noise: float32 [B, P, V]; slot d belongs to the token that follows a row of depth d. None for
        greedy decoding.
      depth: int32 [B, N], at most P - 1.

    Returns:
      int32 [B, N].
    """
    if spec.greedy:
        return argmax(logits)
    slots = jax.vmap(lambda sequence, rows: sequence[rows])(noise, depth)
    return argmax(process(logits, spec, values) + slots)


def draw_rows(
    logits: jax.Array,
    noise: jax.Array,
    sequence: jax.Array,
    depth: jax.Array,
    spec: SamplingSpec,
    values: SamplingValues,
) -> jax.Array:
    """Draw as `draw` does after R rows of several sequences.

    Args:
      logits: [R, V].
      noise: float32 [B, P, V] of all sequences.
      sequence: int32 [R], whose each row is.
      depth: int32 [R].
      spec: `MIXED`.
      values: [B].

    Returns:
      int32 [R].
    """
    rows = jax.tree.map(lambda x: x[sequence], values)
    # The noise of greedy sequences is zero.
    return argmax(process(logits, spec, rows) + noise[sequence, depth])


def argmax(scores: jax.Array) -> jax.Array:
    """Return the index int32 [...] of the largest of `scores` [..., V], the lowest among equals.

    NaN counts as -inf. The two reductions are vectorised and several times faster on a CPU than
    `jnp.argmax`, which reduces over pairs without vectorising.
    """
    scores = jnp.where(jnp.isnan(scores), -jnp.inf, scores)
    if is_split(scores):
        return find_best(scores, 1, _find_largest)[1][..., 0]
    return _find_first(scores)


def _find_first(scores: jax.Array) -> jax.Array:
    """Find the first index of the largest of `scores` [..., V] without NaN."""
    index = lax.broadcasted_iota(jnp.int32, scores.shape, scores.ndim - 1)
    return jnp.where(scores == scores.max(-1, keepdims=True), index, scores.shape[-1]).min(-1)


def _find_largest(scores: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """Find the largest of `scores` [..., V] without NaN, and its first index; both [..., k = 1]."""
    return scores.max(-1, keepdims=True), _find_first(scores)[..., None]


def process_mixed(logits: jax.Array, greedy: jax.Array, values: tuple[jax.Array, ...]) -> jax.Array:
    """Process each row of logits by settings of its own: it gets exactly what they alone give it.

    Steps that no row asks for are skipped on the device.

    Args:
      logits: float32 [..., V].
      greedy: bool [...], rows that keep their logits as they are.
      values: (temperature, top_k, top_p, min_p) [...]. A top_k of 0, a top_p of 1 and a min_p of 0
        leave the step out.

    Returns:
      float32 [..., V].
    """
    # Elementwise after the thresholds, so that what reads the result need not store it first.
    return jnp.where(greedy[..., None], logits, -_filter(logits, greedy, values))


def _filter(logits: jax.Array, greedy: jax.Array, values: tuple[jax.Array, ...]) -> jax.Array:
    """Return how far each logit is below its row's largest, inf where a filter excludes it.

    Only thresholds are kept from one filter to the next. The distances would be one more array of
    the size of the logits for each.
    """
    temperature, top_k, top_p, min_p = (jnp.broadcast_to(x, greedy.shape) for x in values)
    temperature = jnp.where(greedy, 1.0, temperature)[..., None]
    top = find_top(logits)
    limited = ~greedy & (top_k > 0)
    few = limited & (top_k <= FEW)

    def within(threshold: jax.Array) -> jax.Array:
        distance = measure_from(top, logits, temperature)
        return jnp.where(distance <= threshold[..., None], distance, jnp.inf)

    def by_few(threshold: jax.Array) -> jax.Array:
        return find_threshold_of_few(within(threshold), jnp.maximum(top_k, 1), top_p)

    def by_count(threshold: jax.Array) -> jax.Array:
        distance = within(threshold)
        counted = jnp.isfinite(distance).astype(jnp.float32)
        return find_threshold(distance, counted, top_k.astype(jnp.float32))

    def by_mass(threshold: jax.Array) -> jax.Array:
        distance = within(threshold)
        weight = jnp.exp(-distance)
        return find_threshold(distance, weight, top_p * weight.sum(-1))

    threshold = jnp.full(greedy.shape, jnp.inf)
    threshold = _lower(threshold, few, by_few)
    threshold = _lower(threshold, limited & ~few, by_count)
    threshold = _lower(threshold, ~greedy & ~few & (top_p < 1), by_mass)
    floor = jnp.where(greedy | (min_p <= 0), jnp.inf, -jnp.log(jnp.maximum(min_p, 1e-38)))
    return within(jnp.minimum(threshold, floor))


def _lower(
    threshold: jax.Array, rows: jax.Array, find: Callable[[jax.Array], jax.Array]
) -> jax.Array:
    """Lower the `threshold` float32 [...] of some `rows` bool [...] to what `find` returns for it."""

    def lower(threshold: jax.Array) -> jax.Array:
        return jnp.where(rows, jnp.minimum(find(threshold), threshold), threshold)

    return lax.cond(rows.any(), lower, lambda same: same, threshold)
