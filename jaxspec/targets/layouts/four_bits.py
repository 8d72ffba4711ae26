"""Weights of four bits with a scale for each group of inputs, as their files hold them.

"params" holds uint8 [in / 2, out]: of each group, the first half of its inputs in the low bits, the
second half in the high ones. The collection holds scales and zero points [2, G, out], where a
weight is (code - zero point) * scale; or scales [1, G, out] of FP4 numbers, whose scale there is
half of their own, so that numbers are integers. Products of few rows on a GPU are one kernel, which
`jaxspec.targets.linear` chooses; all others make floats of the weights first.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from jaxspec.targets.layouts.layout import Layout
from jaxspec.targets.layouts.quant import FOUR_BITS

# Twice the numbers of FP4.
_FP4 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
_GROUP = 128


def unpack(packed: jax.Array, scales: jax.Array) -> jax.Array:
    """Return the weights, float32 [in, out].

    Args:
      packed, scales: see the module.
    """
    groups, outputs = scales.shape[1:]
    halves = packed.reshape(groups, -1, outputs)
    codes = jnp.concatenate([halves & 15, halves >> 4], axis=1)
    scale = scales[0].astype(jnp.float32)[:, None]
    if scales.shape[0] == 1:
        numbers = jnp.asarray(_FP4, jnp.float32)[codes]
    else:
        numbers = codes.astype(jnp.float32) - scales[1].astype(jnp.float32)[:, None]
    return (numbers * scale).reshape(-1, outputs)


def pack(weights: jax.Array, axis: int = -2) -> tuple[jax.Array, jax.Array]:
    """Round weights [in, out] to four bits, symmetric in groups of at most 128 inputs.

    Args:
      axis: the input axis, -2 or -1.
    """
    weights = (weights if axis == -2 else weights.T).astype(jnp.float32)
    inputs, outputs = weights.shape
    blocks = weights.reshape(-1, math.gcd(inputs, _GROUP), outputs)
    scale = jnp.abs(blocks).max(1) / 7
    scale = jnp.where(scale > 0, scale, 1)
    codes = (jnp.round(blocks / scale[:, None]) + 8).astype(jnp.uint8)
    low, high = jnp.split(codes, 2, axis=1)
    scales = jnp.stack([scale, jnp.full_like(scale, 8)])
    return (low | high << 4).reshape(-1, outputs), scales


def multiply_packed(x: jax.Array, packed: jax.Array, scales: jax.Array, axis: int) -> jax.Array:
    """Multiply `x` [..., in] by the floats that packed weights stand for.

    Returns:
      [..., out] in x's dtype.
    """
    return x @ unpack(packed, scales).astype(x.dtype)


def _owns(weights: jax.Array | None, added: jax.Array) -> bool:
    return weights is not None and weights.dtype == jnp.uint8


FOUR_BIT = Layout("int4", FOUR_BITS, _owns, pack, multiply_packed, whole=True)
