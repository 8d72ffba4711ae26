"""Weights in panels: a second copy of them, for products of few rows on a CPU.

XLA's product of a few rows with a matrix reads the matrix in short pieces that lie far apart, or
rearranges it every time; either takes longer than reading it in order. For SmolLM2-135M, 4 rows take
two to three times as long as one. A copy that is arranged beforehand is read in order:

- The transposed matrix, [out, in]. Each core multiplies some outputs by all rows. In jax 0.10.2 on an
  EPYC with AVX2, 4 to 8 rows take 1.6 to 1.8 times as long as one, where XLA's product takes 3 to 4
  times.
- Panels of a few outputs side by side, [out / lanes, in, lanes]. How many are best differs, presumably
  because the sums of all rows must fit into the vector registers: 4 rows of 32 outputs fill all 16 of
  AVX2. On some processors up to about 5 rows take the time of one, on others this is slower than XLA's
  product. jax 0.10.2 uses one core of two, and 0.11.2 both.

XLA calls YNNPACK for both: for a product with the matrix on the left, and for a sum of products over
panels. `jaxspec.targets.layouts.panel_speed` measures which copy is fastest, and so does `jaxspec check`
(`few rows`).

Panels are in a collection of their own, under the names of the weights, where the layers look for
them (`jaxspec.targets.layers`). Nothing else reads them: weights stay what they are.
`jaxspec.targets.layouts.panel_copies` makes them.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax

COLLECTION = "panels"
# Outputs side by side that name a transposed matrix, [out, in].
TRANSPOSED = 1


def multiply_panels(x: jax.Array, panels: jax.Array) -> jax.Array:
    """Multiply `x` [..., in] by a matrix in panels [out / lanes, in, lanes], or transposed [out, in].

    Returns:
      [..., out] in x's dtype.
    """
    # Without the barriers, XLA would swap the operands of a product, compute x anew for every output,
    # what follows for every term of a sum, and repeat panels for every row in memory where two
    # products share them.
    rows, panels = jax.lax.optimization_barrier((x.reshape(-1, x.shape[-1]), panels))
    if panels.ndim == 2:
        # Of two operands, YNNPACK rearranges the second, so the matrix is the first.
        sums = jax.lax.dot_general(panels, rows, (((1,), (1,)), ((), ())))
        return jax.lax.optimization_barrier(sums).T.reshape(*x.shape[:-1], -1)
    sums = (rows[:, None, :, None] * panels).sum(2)
    return jax.lax.optimization_barrier(sums).reshape(*x.shape[:-1], -1)


def serves(x: jax.Array, panels: jax.Array) -> bool:
    """Whether `x` [..., in] has as few rows as panels are for. One row is fast without them."""
    lanes = TRANSPOSED if panels.ndim == 2 else panels.shape[-1]
    return 1 < math.prod(x.shape[:-1]) <= most_rows(lanes)


def most_rows(lanes: int) -> int:
    """Return the most rows that read panels. With more, XLA's own product is as fast."""
    return 32 if lanes == TRANSPOSED else 16


def lanes_of(variables: Any) -> int:
    """Return the outputs that the panels of variables have side by side; 0 if they have none."""
    found = jax.tree.leaves(variables.get(COLLECTION, {}))
    if not found:
        return 0
    return TRANSPOSED if found[0].ndim == 2 else found[0].shape[-1]


def without_panels(variables: Any) -> Any:
    """Return variables without their panels."""
    return {name: one for name, one in variables.items() if name != COLLECTION}


def some_weight(*variables: Any) -> jax.Array:
    """Return an array that tells these variables from others, whether or not they have panels."""
    return jax.tree.leaves([without_panels(one) for one in variables])[0]


@functools.partial(jax.jit, static_argnames=("lanes", "transposed"))
def arrange(matrix: jax.Array, lanes: int, transposed: bool = False) -> jax.Array:
    """Arrange a matrix [in, out], or [out, in] if it is transposed, as [out / lanes, in, lanes].

    Args:
      lanes: outputs side by side. `TRANSPOSED` gives [out, in].
    """
    if lanes == TRANSPOSED:
        return matrix if transposed else matrix.T
    if transposed:
        return matrix.reshape(-1, lanes, matrix.shape[1]).swapaxes(1, 2)
    return matrix.reshape(matrix.shape[0], -1, lanes).swapaxes(0, 1)
