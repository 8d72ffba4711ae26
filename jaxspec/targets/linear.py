"""Products by matrices of weights, which are stored [in, out].

The scales of quantised weights are in a collection of their own, under the same names (see
`jaxspec.targets.layouts.quant`), and so are the panels that CPUs read (`jaxspec.targets.layouts.panels`).
"""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxspec.targets.layouts import panels
from pallas_kernels.device import current_device

INIT = nn.initializers.normal(0.02)


def scale_of(module: nn.Module, name: str) -> jax.Array | None:
    """Return the scale per output channel, float32, of a parameter; None if it is not quantised."""
    return module.get_variable("quant", name)


def panels_of(module: nn.Module, name: str) -> jax.Array | None:
    """Return a parameter's panels for few rows on a CPU; None if it has none."""
    return module.get_variable(panels.COLLECTION, name)


def multiply_kernel(
    x: jax.Array,
    kernel: jax.Array,
    scale: jax.Array | None = None,
    axis: int = 0,
    few: jax.Array | None = None,
) -> jax.Array:
    """Multiply `x` [..., in] by a matrix; its `axis` is the input.

    A quantised kernel has a `scale` per output. XLA reads its values as stored and converts them
    inside the product. Sums stay float32 until they are scaled, because unscaled sums exceed
    float16's range.

    Args:
      few: the matrix in panels, which products of few rows read (`jaxspec.targets.layouts.panels`).

    Returns:
      [..., out] in x's dtype.
    """
    if few is not None and panels.serves(x, few):
        return panels.multiply_panels(x, few)
    if x.ndim > 1 and _is_single(x) and current_device().platform == "cuda":
        return multiply_kernel(_twice(x), kernel, scale, axis)[..., :1, :]
    inputs = (((x.ndim - 1,), (axis,)), ((), ()))
    if scale is None:
        return jax.lax.dot_general(x, kernel, inputs)
    return scaled(
        jax.lax.dot_general(x, kernel.astype(x.dtype), inputs, preferred_element_type=jnp.float32),
        scale,
        x.dtype,
    )


def _is_single(x: jax.Array) -> bool:
    """Whether `x` is a single row.

    XLA multiplies it elementwise on a GPU, and writes the matrix in float32 to do so; or it makes a
    product with one column, which may be what crashed on an H100 (`docs/gpu.md`).
    """
    return x.size == x.shape[-1]


def _twice(x: jax.Array) -> jax.Array:
    """Repeat a single row, so that a product sees two."""
    return jnp.concatenate([x, x], axis=-2)


def scaled(sums: jax.Array, scale: jax.Array, dtype) -> jax.Array:
    """Scale and round float32 sums over quantised weights."""
    return (sums * scale).astype(dtype)


def multiply_parts(
    x: jax.Array, kernel: jax.Array, scale: jax.Array | None, parts: int
) -> jax.Array:
    """Multiply `x` [..., in] by a matrix [in, out] in `parts` parts of the inputs.

    Returns:
      float32 [parts, ..., out], whose sum over the first axis is the product.
    """
    if _is_single(x):
        return multiply_parts(_twice(x), kernel, scale, parts)[..., :1, :]
    rows = x.reshape(*x.shape[:-1], parts, -1)
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
        kernel, scale = (
            self.param("kernel", INIT, (x.shape[-1], self.features)),
            scale_of(self, "kernel"),
        )
        if parts is not None and parts > 1 and not self.bias:
            return multiply_parts(x, kernel, scale, parts)
        y = multiply_kernel(x, kernel, scale, few=panels_of(self, "kernel"))
        if self.bias:
            y = y + self.param("bias", nn.initializers.zeros, (self.features,))
        return y if parts is None else y[None]
