"""Give implementations of tree attention the reference's derivative."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from pallas_kernels import reference


def differentiable(call: Callable) -> Callable:
    """Make an implementation differentiable; the reference computes the derivative, and then also
    the value.

    Args:
      call: (q, k, v, cache_k, cache_v, (layer int32 [], length int32 [B], first int32 [B] or None,
        positions, mask), *, window, cut, interpret) -> [B, T, H, D]; see
        `pallas_kernels.reference.tree_attention`. The layer is an operand, so all layers of a model
        share one trace.

    Returns:
      `function(q, k, v, positions, mask, prefix, window, cut, interpret)`.
    """
    call = jax.jit(call, static_argnames=("window", "cut", "interpret"))

    @functools.partial(jax.custom_vjp, nondiff_argnums=(6, 7, 8))
    def apply(q, k, v, cache_k, cache_v, rest, window, cut, interpret):
        return call(q, k, v, cache_k, cache_v, rest, window=window, cut=cut, interpret=interpret)

    def forward(q, k, v, cache_k, cache_v, rest, window, cut, interpret):
        layer, length, first, positions, mask = rest

        def value(q, k, v, cache_k, cache_v):
            return reference.tree_attention(
                q, k, v, positions, mask, (cache_k, cache_v, layer, length, first), window
            )

        return jax.vjp(value, q, k, v, cache_k, cache_v)

    def backward(window, cut, interpret, derivative, cotangent):
        return *derivative(cotangent), None

    apply.defvjp(forward, backward)

    def entry(q, k, v, positions, mask, prefix, window, cut: NamedTuple, interpret: bool):
        cache_k, cache_v, layer, length, first = prefix
        layer, length = jnp.asarray(layer, jnp.int32), jnp.asarray(length, jnp.int32)
        first = None if first is None else jnp.asarray(first, jnp.int32)
        rest = layer, length, first, positions, mask
        return apply(q, k, v, cache_k, cache_v, rest, window, cut, interpret)

    return entry
