"""Weights in panels: a second copy of them, for products of few rows on a CPU.

XLA's product of a few rows with a matrix rearranges the matrix every time, which takes longer than
reading it: for SmolLM2-135M, 4 rows take about twice the time of one. Of a copy that is arranged
beforehand, some outputs side by side, a multiplication and a sum read every weight once and in order.
On some processors up to about 5 rows then take the time of one; on others this is slower than XLA's
product. How many outputs are best differs too, presumably because the sums of all rows must fit into
the vector registers: 4 rows of 32 outputs fill all 16 of AVX2.
`jaxspec.targets.panel_speed` measures that, and so does `jaxspec check` (`few rows`).

Panels are in a collection of their own, under the names of the weights, where the layers look for
them (`jaxspec.targets.layers`). Nothing else reads them: weights stay what they are.
`jaxspec.targets.panel_copies` makes them.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax

COLLECTION = "panels"
# Most rows that read panels. From about 16 on, XLA's own product is as fast.
MOST_ROWS = 16


def multiply_panels(x: jax.Array, panels: jax.Array) -> jax.Array:
    """Multiply `x` [..., in] by a matrix in panels [out / lanes, in, lanes].

    Returns:
      [..., out] in x's dtype.
    """
    # Without the barriers, XLA would compute x anew for every output, what follows for every term of
    # the sum, and repeat the panels for every row in memory where two products share them.
    rows, panels = jax.lax.optimization_barrier((x.reshape(-1, x.shape[-1]), panels))
    sums = (rows[:, None, :, None] * panels).sum(2)
    return jax.lax.optimization_barrier(sums).reshape(*x.shape[:-1], -1)


def serves(x: jax.Array) -> bool:
    """Whether `x` [..., in] has as few rows as panels are for. One row is fast without them."""
    return 1 < math.prod(x.shape[:-1]) <= MOST_ROWS


def lanes_of(variables: Any) -> int:
    """Return the outputs that the panels of variables have side by side; 0 if they have none."""
    found = jax.tree.leaves(variables.get(COLLECTION, {}))
    return found[0].shape[-1] if found else 0


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
      lanes: outputs side by side.
    """
    if transposed:
        return matrix.reshape(-1, lanes, matrix.shape[1]).swapaxes(1, 2)
    return matrix.reshape(matrix.shape[0], -1, lanes).swapaxes(0, 1)
