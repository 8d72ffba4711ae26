"""Thresholds of top-k and top-p, exact and without a loop whose end depends on data.

The distance of a token is how far its logit is below the largest. A filter keeps all tokens within
a threshold, so that ties with the last token kept are kept too.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from jaxspec.core.sampling.top_k import top_k

FEW = 64
"""Largest top_k for which the best tokens are found first and all filters work on them."""

_INF_BITS = 0x7F800000
_BITS = 31  # of a non-negative float


def measure_distance(logits: jax.Array, temperature: jax.Array | float) -> jax.Array:
    """Return how far each of `logits` [..., V] is below the largest, divided by the temperature.

    Values are >= 0, inf where excluded.
    """
    return measure_from(find_top(logits), logits, temperature)


def find_top(logits: jax.Array) -> jax.Array:
    """Return the largest of float32 `logits` [..., V], from which distances are measured: [..., 1].

    It is finite, and 0 where all are excluded.
    """
    top = _clean(logits).max(-1, keepdims=True)
    return jnp.where(jnp.isfinite(top), top, 0.0)


def measure_from(top: jax.Array, logits: jax.Array, temperature: jax.Array | float) -> jax.Array:
    """Measure as `measure_distance` does, from what `find_top` found.

    It is elementwise, so that it can be computed again where it is read instead of being stored.
    """
    return (top - _clean(logits)) / temperature


def _clean(logits: jax.Array) -> jax.Array:
    limit = jnp.finfo(jnp.float32).max
    return jnp.where(jnp.isnan(logits), -jnp.inf, jnp.minimum(logits, limit))


def find_threshold_of_few(
    distance: jax.Array, count: jax.Array, top_p: jax.Array | None
) -> jax.Array:
    """Find the threshold of top-k and then top-p from the best FEW tokens.

    Args:
      distance: float32 [..., V], at least 0, inf where excluded.
      count: int32 [] or [...], top_k from 1 to FEW; rows of more get a threshold of no use.
      top_p: float32 [] below 1; float32 [...], where 1 stands for no top-p; or None without top-p.

    Returns:
      float32 [...]; inf if fewer than `count` tokens are finite and top-p excludes none of them.
    """
    best = -top_k(-distance, min(FEW, distance.shape[-1]))[0]
    place = jnp.minimum(count, best.shape[-1]) - 1
    last = (
        jnp.take_along_axis(best, place[..., None], axis=-1)
        if count.ndim
        else lax.dynamic_index_in_dim(best, place, -1)
    )
    if top_p is None:
        return last[..., 0]
    # Any number of tokens may be tied with the last one. All nearer ones are among the best.
    tied = (distance == last).sum(-1, dtype=jnp.float32)
    weight = jnp.where(best < last, jnp.exp(-best), 0.0)
    total = weight.sum(-1) + tied * jnp.exp(-last[..., 0])
    up_to = jnp.arange(best.shape[-1])
    within = jnp.where(up_to <= up_to[:, None], weight[..., None, :], 0.0).sum(-1)
    share = top_p[..., None] if top_p.ndim else top_p
    reached = (best < last) & (within >= share * total[..., None])
    if top_p.ndim:
        reached &= share < 1
    return jnp.where(reached, best, last).min(-1)


def find_threshold(distance: jax.Array, weight: jax.Array, target: jax.Array) -> jax.Array:
    """Find the smallest distance within which the weights sum to `target`.

    Non-negative floats are ordered like their bit patterns, so a search of the 31 bits finds it
    exactly. Passes over the vocabulary are much faster than sorting it. A GPU settles four bits
    with every pass, because a pass is bound by the memory it reads and a loop by the host; a CPU is
    bound by comparisons and settles one.

    Args:
      distance: float32 [..., V], at least 0.
      weight: float32 [..., V], at least 0.
      target: float32 [...].

    Returns:
      float32 [...]; inf if the sum is never reached.
    """
    return lax.platform_dependent(
        distance, weight, target, cpu=_halve_in_a_loop, default=_search_four_bits
    )


def _halve_in_a_loop(distance: jax.Array, weight: jax.Array, target: jax.Array) -> jax.Array:
    def halve(_: int, bounds: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low, high = bounds
        middle = low + (high - low) // 2
        inside = distance <= _as_float(middle)[..., None]
        reached = jnp.where(inside, weight, 0.0).sum(-1) >= target
        return jnp.where(reached, low, middle), jnp.where(reached, middle, high)

    low = jnp.full(distance.shape[:-1], -1, jnp.int32)
    return _as_float(lax.fori_loop(0, _BITS, halve, (low, jnp.full_like(low, _INF_BITS)))[1])


def _search_four_bits(distance: jax.Array, weight: jax.Array, target: jax.Array) -> jax.Array:
    """Settle three bits of the threshold and then four with each pass, from the highest on."""
    pattern = jnp.zeros((*distance.shape[:-1], 1), jnp.int32)
    nothing = jnp.zeros_like(weight)
    for shift in range(_BITS - 3, -1, -4):
        # The threshold has the bits j or more here if all patterns before that are too near.
        steps = (jnp.arange(1, min(16, 1 << (_BITS - shift)), dtype=jnp.int32) << shift) - 1
        before = _as_float(jnp.minimum(pattern + steps, _INF_BITS))
        # Few operations a step: they are most of what a sampling program compiles.
        inside = [
            lax.select(distance <= before[..., j : j + 1], weight, nothing)
            for j in range(steps.size)
        ]
        near = sum((x < target).astype(jnp.int32) for x in _sum_together(inside))
        pattern += jnp.expand_dims(near, -1) << shift
    return _as_float(jnp.minimum(pattern, _INF_BITS))[..., 0]


def _sum_together(arrays: list[jax.Array]) -> tuple[jax.Array, ...]:
    """Sum arrays over their last axis, in one kernel that reads what they are made of once."""

    def add(left: tuple, right: tuple) -> tuple:
        return tuple(a + b for a, b in zip(left, right, strict=True))

    zeros = tuple(jnp.float32(0) for _ in arrays)
    return tuple(lax.reduce(tuple(arrays), zeros, add, (arrays[0].ndim - 1,)))


def _as_float(pattern: jax.Array) -> jax.Array:
    return lax.bitcast_convert_type(pattern, jnp.float32)
