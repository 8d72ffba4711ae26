"""Products by matrices of weights, which are stored [in, out], in whatever layout they lie.

What a layout adds is in a collection of its own, under the same names (`jaxspec.targets.layouts`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxspec.targets.layouts.layout import Layout
from jaxspec.targets.layouts.quant import COLLECTION, FOUR_BITS, scaled
from jaxspec.targets.layouts.registry import find_added, find_layouts
from pallas_kernels.device import current_device
from pallas_kernels.four_bits import find_kernel

INIT = nn.initializers.normal(0.02)


class Weights(NamedTuple):
    """A matrix as it lies.

    Attributes:
      values: [in, out], or [out, in] if `axis` is -1.
      added: what layouts add, by collection.
      axis: its input axis, -2 or -1.
    """

    values: jax.Array
    added: Mapping[str, jax.Array]
    axis: int = -2

    def layouts(self) -> list[tuple[Layout, jax.Array]]:
        """Return the matrix's layouts, each with what it adds."""
        return find_layouts(self.values, self.added)


def declare(module: nn.Module, name: str, shape: tuple[int, ...], axis: int = -2) -> Weights:
    """Declare a matrix of a module, and find what layouts add to it."""
    added = find_added(module, name)
    if FOUR_BITS in added:  # its shape is another
        return Weights(module.get_variable("params", name), added, axis)
    return Weights(module.param(name, INIT, shape), added, axis)


def scale_of(weights: Weights) -> jax.Array | None:
    """Return the scale per output channel, float32, of weights; None if they are not quantised."""
    return weights.added.get(COLLECTION)


def multiply(x: jax.Array, weights: Weights) -> jax.Array:
    """Multiply `x` [..., in] by a matrix.

    Returns:
      [..., out] in x's dtype.
    """
    found, rows = weights.layouts(), math.prod(x.shape[:-1])
    for layout, added in found:
        if layout.copies and layout.serves(rows):
            return layout.multiply(x, weights.values, added, weights.axis)
    if x.ndim > 1 and _is_single(x) and current_device().platform == "cuda":
        return _multiply_stored(_twice(x), weights, found)[..., :1, :]
    return _multiply_stored(x, weights, found)


def _multiply_stored(
    x: jax.Array, weights: Weights, found: list[tuple[Layout, jax.Array]]
) -> jax.Array:
    """Multiply by the weights themselves, of which there may be copies too."""
    for layout, added in found:
        if layout.copies:
            continue
        kernel = _find_kernel(x, weights) if layout.whole else None
        if kernel is not None:
            rows = x.reshape(-1, x.shape[-1])
            return kernel(rows, weights.values, added).reshape(*x.shape[:-1], -1)
        return layout.multiply(x, weights.values, added, weights.axis)
    axis = weights.axis % weights.values.ndim
    return jax.lax.dot_general(x, weights.values, (((x.ndim - 1,), (axis,)), ((), ())))


def _find_kernel(x: jax.Array, weights: Weights) -> Callable | None:
    """Return the kernel that multiplies `x` by weights of four bits; None if XLA does."""
    groups = weights.added[FOUR_BITS].shape[1]
    return find_kernel(x.dtype, math.prod(x.shape[:-1]), x.shape[-1] // groups)


def _is_single(x: jax.Array) -> bool:
    """Whether `x` is a single row.

    XLA multiplies it elementwise on a GPU, and writes the matrix in float32 to do so; or it makes a
    product with one column, which may be what crashed on an H100 (`docs/gpu.md`).
    """
    return x.size == x.shape[-1]


def _twice(x: jax.Array) -> jax.Array:
    """Repeat a single row, so that a product sees two."""
    return jnp.concatenate([x, x], axis=-2)


def look_up(table: Weights, rows: jax.Array, dtype: Callable[[], Any]) -> jax.Array:
    """Look up rows int32 [...] of a table [V, E].

    Args:
      dtype: tells the dtype to which quantised rows are rounded, when they are scaled.

    Returns:
      [..., E].
    """
    found, scale = jnp.take(table.values, rows, axis=0), scale_of(table)
    if scale is None:
        return found
    return scaled(found.astype(jnp.float32), jnp.take(scale, rows)[..., None], dtype())


def multiply_parts(x: jax.Array, weights: Weights, parts: int) -> jax.Array:
    """Multiply `x` [..., in] by a matrix [in, out] in `parts` parts of the inputs.

    Returns:
      float32 [parts, ..., out], whose sum over the first axis is the product.
    """
    if _is_single(x):
        return multiply_parts(_twice(x), weights, parts)[..., :1, :]
    rows = x.reshape(*x.shape[:-1], parts, -1)
    kernel, scale = weights.values, scale_of(weights)
    blocks = kernel.astype(x.dtype).reshape(parts, -1, kernel.shape[-1])
    inputs = (((x.ndim,), (1,)), ((x.ndim - 1,), (0,)))
    sums = jax.lax.dot_general(rows, blocks, inputs, preferred_element_type=jnp.float32)
    return sums if scale is None else sums * scale


class Linear(nn.Module):
    """`x @ kernel (+ bias)`, kernel [in, out]."""

    features: int
    bias: bool = False

    @nn.compact
    def __call__(self, x: jax.Array, parts: int | None = None) -> jax.Array:
        """Multiply `x` [..., in].

        Args:
          parts: into how many parts of the inputs to split the product.

        Returns:
          [..., out]; with `parts`, [S, ..., out], see `pallas_kernels.reference.add_parts`.
        """
        kernel = declare(self, "kernel", (x.shape[-1], self.features))
        whole = self.bias or any(layout.whole for layout, _ in kernel.layouts())
        if parts is not None and parts > 1 and not whole:
            return multiply_parts(x, kernel, parts)
        y = multiply(x, kernel)
        if self.bias:
            y = y + self.param("bias", nn.initializers.zeros, (self.features,))
        return y if parts is None else y[None]
