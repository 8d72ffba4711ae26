"""Sampling settings side by side: each row of logits is processed by settings of its own.

A row gets exactly what `jaxspec.core.sampling.sampling.process` gives it for its settings alone. Steps that no
row asks for are skipped on the device.
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
    measure_from,
)


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
