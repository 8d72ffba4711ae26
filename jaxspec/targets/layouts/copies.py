"""Copies of weights for products of few rows on a CPU, transposed or in panels.

XLA's product of a few rows with a matrix reads the matrix in short pieces that lie far apart, or
rearranges it every time; either takes longer than reading it in order. For SmolLM2-135M, 4 rows
take two to three times as long as one. A copy that is arranged beforehand is read in order:

- The transposed matrix, [out, in]. Each core multiplies some outputs by all rows. In jax 0.10.2 on
  an EPYC with AVX2, 4 to 8 rows take 1.6 to 1.8 times as long as one, where XLA's product takes 3
  to 4 times.
- Panels of a few outputs side by side, [out / lanes, in, lanes]. How many are best differs,
  presumably because the sums of all rows must fit into the vector registers: 4 rows of 32 outputs
  fill all 16 of AVX2. On some processors up to about 5 rows take the time of one, on others this is
  slower than XLA's product. jax 0.10.2 uses one core of two, and 0.11.2 both.

XLA calls YNNPACK for both: for a product with the matrix on the left, and for a sum of products
over panels. `jaxspec.tuner.layout_speed` measures which copy is fastest, and so does
`python -m benchmarks few-rows`.
"""

from __future__ import annotations

import functools

import jax

from jaxspec.targets.layouts.layout import Layout


def multiply_panels(x: jax.Array, panels: jax.Array) -> jax.Array:
    """Multiply `x` [..., in] by a matrix in panels [out / lanes, in, lanes], or transposed [out,
    in].

    Returns:
      [..., out] in x's dtype.
    """
    # Without the barriers, XLA would swap the operands of a product, compute x anew for every
    # output, what follows for every term of a sum, and repeat panels for every row in memory where
    # two products share them.
    rows, panels = jax.lax.optimization_barrier((x.reshape(-1, x.shape[-1]), panels))
    if panels.ndim == 2:
        # Of two operands, YNNPACK rearranges the second, so the matrix is the first.
        sums = jax.lax.dot_general(panels, rows, (((1,), (1,)), ((), ())))
        return jax.lax.optimization_barrier(sums).T.reshape(*x.shape[:-1], -1)
    sums = (rows[:, None, :, None] * panels).sum(2)
    return jax.lax.optimization_barrier(sums).reshape(*x.shape[:-1], -1)


@functools.partial(jax.jit, static_argnames=("lanes", "axis"))
def arrange_panels(matrix: jax.Array, axis: int, lanes: int) -> jax.Array:
    """Arrange a matrix, whose input axis is -2 or -1, as [out / lanes, in, lanes]."""
    if axis == -1:
        return matrix.reshape(-1, lanes, matrix.shape[1]).swapaxes(1, 2)
    return matrix.reshape(matrix.shape[0], -1, lanes).swapaxes(0, 1)


@jax.jit
def _transpose(matrix: jax.Array) -> jax.Array:
    return matrix.T


def _make_layout(lanes: int) -> Layout:
    """Make the layout of copies with so many outputs side by side; 1: the transposed matrix."""

    def owns(weights: jax.Array | None, added: jax.Array) -> bool:
        return lanes == (1 if added.ndim == 2 else added.shape[-1])

    def arrange(weights: jax.Array, axis: int) -> tuple[jax.Array, jax.Array]:
        if lanes > 1:
            return weights, arrange_panels(weights, axis, lanes)
        return weights, weights if axis == -1 else _transpose(weights)

    def multiply(x: jax.Array, weights: jax.Array, added: jax.Array, axis: int) -> jax.Array:
        return multiply_panels(x, added)

    name, most = ("transposed", 32) if lanes == 1 else (f"panels of {lanes}", 16)
    # One row is fast without a copy. With more than the most, XLA's own product is as fast.
    rows = range(2, most + 1)
    own = name, "panels", owns, arrange, multiply
    return Layout(*own, copies=True, rows=rows, side_by_side=lanes)


# Layouts by the outputs that lie side by side.
COPIES = {lanes: _make_layout(lanes) for lanes in (1, 8, 16, 32)}
