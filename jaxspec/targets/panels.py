"""Products of few rows on a CPU: by a copy of the weights in panels, or with the rows as columns.

XLA's product of a few rows with a matrix rearranges the matrix every time, which takes longer than
reading it: for SmolLM2-135M, 4 rows take about twice the time of one. Of a copy that is arranged
beforehand, 32 outputs side by side, a multiplication and a sum read every weight once and in order.
On some processors up to about 5 rows then take the time of one; on others this is slower than XLA's
product. There it helps to hand XLA the rows as columns, for which it takes another library's product.
`jaxspec.targets.panel_speed` measures which is fastest, and so does `jaxspec check` (`few rows`).

What such products read is in a collection of its own, under the names of the weights, where the
layers look for it (`jaxspec.targets.layers`): panels, or the weights themselves for columns. Nothing
else reads it. `jaxspec.targets.panel_copies` makes it.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax

COLLECTION = "panels"
# Outputs side by side: two of the widest vector registers.
LANES = 32
# Numbers of rows that read panels, and that are turned into columns. With others, one above all, XLA's
# own product is as fast.
MOST_ROWS = 16
PANEL_ROWS, COLUMN_ROWS = range(2, MOST_ROWS + 1), range(3, 7)


def multiply_panels(x: jax.Array, panels: jax.Array) -> jax.Array:
    """Multiply `x` [..., in] by a matrix in panels [out / LANES, in, LANES].

    Returns:
      [..., out] in x's dtype.
    """
    # Without the barriers, XLA would compute x anew for every output, what follows for every term of
    # the sum, and repeat the panels for every row in memory where two products share them.
    rows, panels = jax.lax.optimization_barrier((x.reshape(-1, x.shape[-1]), panels))
    sums = (rows[:, None, :, None] * panels).sum(2)
    return jax.lax.optimization_barrier(sums).reshape(*x.shape[:-1], -1)


def multiply_columns(x: jax.Array, matrix: jax.Array) -> jax.Array:
    """Multiply `x` [..., in] by a matrix [in, out], with the rows of x as columns.

    Returns:
      [..., out] in x's dtype.
    """
    # Without the barrier, XLA would turn the columns into rows again.
    columns = jax.lax.optimization_barrier(x.reshape(-1, x.shape[-1]).T)
    product = jax.lax.dot_general(columns, matrix, (((0,), (0,)), ((), ())))
    return product.reshape(*x.shape[:-1], -1)


def multiply_few(x: jax.Array, given: jax.Array) -> jax.Array:
    """Multiply `x` [..., in] by panels, or by a matrix as columns."""
    return multiply_panels(x, given) if given.ndim == 3 else multiply_columns(x, given)


def serves(x: jax.Array, given: jax.Array) -> bool:
    """Whether `x` [..., in] has as few rows as these panels, or this matrix as columns, are for."""
    return math.prod(x.shape[:-1]) in (PANEL_ROWS if given.ndim == 3 else COLUMN_ROWS)


def without_panels(variables: Any) -> Any:
    """Return variables without their panels."""
    return {name: one for name, one in variables.items() if name != COLLECTION}


def some_weight(*variables: Any) -> jax.Array:
    """Return an array that tells these variables from others, whether or not they have panels."""
    return jax.tree.leaves([without_panels(one) for one in variables])[0]


@functools.partial(jax.jit, static_argnames="transposed")
def arrange(matrix: jax.Array, transposed: bool = False) -> jax.Array:
    """Arrange a matrix [in, out], or [out, in] if it is transposed, as [out / LANES, in, LANES]."""
    if transposed:
        return matrix.reshape(-1, LANES, matrix.shape[1]).swapaxes(1, 2)
    return matrix.reshape(matrix.shape[0], -1, LANES).swapaxes(0, 1)
