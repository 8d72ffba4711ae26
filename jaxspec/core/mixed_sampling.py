"""Sampling settings side by side: each row of logits is processed by settings of its own.

A row gets exactly what `jaxspec.core.sampling.process` gives it for its settings alone. Steps that no
row asks for are skipped on the device.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from jaxspec.core.filters import FEW, find_threshold, find_threshold_of_few, measure_distance


def process_mixed(logits: jax.Array, greedy: jax.Array, values: tuple[jax.Array, ...]) -> jax.Array:
    """Return the logits of the distributions to sample from.

    Args:
      logits: float32 [..., V].
      greedy: bool [...], rows that keep their logits as they are.
      values: (temperature, top_k, top_p, min_p) [...]. A top_k of 0, a top_p of 1 and a min_p of 0
        leave the step out.

    Returns:
      float32 [..., V].
    """

    def sample() -> jax.Array:
        return jnp.where(greedy[..., None], logits, -_filter(logits, greedy, values))

    return lax.cond(greedy.all(), lambda: logits, sample)


def _filter(logits: jax.Array, greedy: jax.Array, values: tuple[jax.Array, ...]) -> jax.Array:
    """Return how far each logit is below its row's largest, inf where a filter excludes it."""
    temperature, top_k, top_p, min_p = (jnp.broadcast_to(x, greedy.shape) for x in values)
    distance = measure_distance(logits, jnp.where(greedy, 1.0, temperature)[..., None])
    limited = ~greedy & (top_k > 0)
    few = limited & (top_k <= FEW)

    def by_few(distance: jax.Array) -> jax.Array:
        return find_threshold_of_few(distance, jnp.maximum(top_k, 1), top_p)

    def by_count(distance: jax.Array) -> jax.Array:
        counted = jnp.isfinite(distance).astype(jnp.float32)
        return find_threshold(distance, counted, top_k.astype(jnp.float32))

    def by_mass(distance: jax.Array) -> jax.Array:
        weight = jnp.exp(-distance)
        return find_threshold(distance, weight, top_p * weight.sum(-1))

    distance = _cut_some(distance, few, by_few)
    distance = _cut_some(distance, limited & ~few, by_count)
    distance = _cut_some(distance, ~greedy & ~few & (top_p < 1), by_mass)
    floor = jnp.where(greedy | (min_p <= 0), jnp.inf, -jnp.log(jnp.maximum(min_p, 1e-38)))
    return jnp.where(distance <= floor[..., None], distance, jnp.inf)


def _cut_some(
    distance: jax.Array, rows: jax.Array, find: Callable[[jax.Array], jax.Array]
) -> jax.Array:
    """Exclude what is beyond the threshold that `find` gives, in some `rows` bool [...]."""

    def cut(distance: jax.Array) -> jax.Array:
        threshold = jnp.where(rows, find(distance), jnp.inf)
        return jnp.where(distance <= threshold[..., None], distance, jnp.inf)

    return lax.cond(rows.any(), cut, lambda same: same, distance)
