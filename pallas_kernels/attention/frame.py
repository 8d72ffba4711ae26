"""Give implementations of tree attention the reference's derivative."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from pallas_kernels import reference


class Scoring(NamedTuple):
    """What is static about scores, see `pallas_kernels.reference.tree_attention`."""

    window: int | None = None
    scale: float | None = None

    def scale_of(self, head_dim: int) -> float:
        """Return the factor of scores of heads of this width."""
        return head_dim**-0.5 if self.scale is None else self.scale


def differentiable(call: Callable) -> Callable:
    """Make an implementation differentiable; the reference computes the derivative, and then also
    the value.

    Args:
      call: (q, k, v, cache_k, cache_v, (layer int32 [], length int32 [B], first int32 [B] or None,
        positions, mask, sinks), *, scoring, cut, interpret) -> [B, T, H, D]; see
        `pallas_kernels.reference.tree_attention`. The layer is an operand, so all layers of a model
        share one trace.

    Returns:
      `function(q, k, v, positions, mask, prefix, sinks, scoring, cut, interpret)`. It has no
      derivative with respect to the sinks.
    """
    call = jax.jit(call, static_argnames=("scoring", "cut", "interpret"))

    @functools.partial(jax.custom_vjp, nondiff_argnums=(6, 7, 8))
    def apply(q, k, v, cache_k, cache_v, rest, scoring, cut, interpret):
        return call(q, k, v, cache_k, cache_v, rest, scoring=scoring, cut=cut, interpret=interpret)

    def forward(q, k, v, cache_k, cache_v, rest, scoring, cut, interpret):
        layer, length, first, positions, mask, sinks = rest

        def value(q, k, v, cache_k, cache_v):
            return reference.tree_attention(
                q, k, v, positions, mask, (cache_k, cache_v, layer, length, first), *scoring, sinks
            )

        return jax.vjp(value, q, k, v, cache_k, cache_v)

    def backward(scoring, cut, interpret, derivative, cotangent):
        return *derivative(cotangent), None

    apply.defvjp(forward, backward)

    def entry(
        q, k, v, positions, mask, prefix, sinks, scoring: Scoring, cut: NamedTuple, interpret: bool
    ):
        cache_k, cache_v, layer, length, first = prefix
        layer, length = jnp.asarray(layer, jnp.int32), jnp.asarray(length, jnp.int32)
        first = None if first is None else jnp.asarray(first, jnp.int32)
        rest = layer, length, first, positions, mask, sinks
        return apply(q, k, v, cache_k, cache_v, rest, scoring, cut, interpret)

    return entry
