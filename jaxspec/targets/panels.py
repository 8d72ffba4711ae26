"""Weights in panels: a second copy of them, for products of few rows on a CPU.

XLA's product of a few rows with a matrix rearranges the matrix every time, which takes longer than
reading it: for SmolLM2-135M, 4 rows take twice the time of one. Of a copy that is arranged
beforehand, 32 outputs side by side, a multiplication and a sum read every weight once and in order,
and up to about 5 rows take the time of one. `jaxspec check` measures it
(`few rows`).

Panels are in a collection of their own, under the names of the weights, where the layers look for
them (`jaxspec.targets.layers`). Nothing else reads them: weights stay what they are.
"""

from __future__ import annotations

import functools
import math
import os
import weakref
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict

from jaxspec.core.params import Params
from pallas_kernels.versions import vectorizes_sums

COLLECTION = "panels"
# Outputs side by side: two of the widest vector registers.
LANES = 32
# Most rows that read panels. From about 16 on, XLA's own product is as fast.
MOST_ROWS = 16
# Largest share of the machine's memory that the copies of a model may take.
MOST_MEMORY = 0.25
# Environment variable that turns panels off.
SWITCH = "JAXSPEC_PANELS"

# Panels by the identity of their weights, with a reference that tells whether these still exist.
_made: dict[tuple[int, bool], tuple[weakref.ref, jax.Array]] = {}


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


def serves(x: jax.Array) -> bool:
    """Whether `x` [..., in] has as few rows as panels are for. One row is fast without them."""
    return 1 < math.prod(x.shape[:-1]) <= MOST_ROWS


def with_panels(params: Params, method: str | Sequence[str], batch: int) -> Params:
    """Add panels to a model's target and to the drafter of a call, or to several drafters.

    They are made once for each array, and freed with it.

    Args:
      params: the model; it is not changed.
      method: name of the drafter, or `ar`; or names of drafters.
      batch: number of sequences.

    Returns:
      `params` with panels; as it is where panels would not be read or not be faster: on other
      devices than a CPU, for other dtypes than float32, for batches whose rounds have too many rows
      or a single one, and where copies would take more than `MOST_MEMORY` of the memory.
    """
    methods = (method,) if isinstance(method, str) else tuple(method)
    rows = batch if methods == ("ar",) else 2 * batch
    weights = [params.target, *map(params.drafter, methods)]
    if not (1 < rows <= MOST_ROWS and vectorizes_sums() and os.environ.get(SWITCH) != "0"):
        return params
    if not all(map(_suits, jax.tree.leaves(weights))):
        return params
    if sum(leaf.nbytes for leaf in jax.tree.leaves(weights)) > MOST_MEMORY * _memory():
        return params
    target, *drafters = [{**one, COLLECTION: _panels_of(one)} if one else one for one in weights]
    made = {name: one for name, one in zip(methods, drafters, strict=True) if one}
    return params.replace(target=target, drafters={**params.drafters, **made})


def with_panels_like(weights: Any, other: Any) -> Any:
    """Add panels to variables if `other`, variables of the same shapes, have them."""
    return {**weights, COLLECTION: _panels_of(weights)} if COLLECTION in other else weights


def without_panels(variables: Any) -> Any:
    """Return variables without their panels."""
    return {name: one for name, one in variables.items() if name != COLLECTION}


def some_weight(*variables: Any) -> jax.Array:
    """Return an array that tells these variables from others, whether or not they have panels."""
    return jax.tree.leaves([without_panels(one) for one in variables])[0]


def _suits(leaf: Any) -> bool:
    """Whether an array is concrete, on one CPU device, and neither quantised nor of a short float."""
    if not isinstance(leaf, jax.Array) or isinstance(leaf, jax.core.Tracer):
        return False
    kinds = {device.platform for device in leaf.devices()}
    return kinds == {"cpu"} and len(leaf.devices()) == 1 and leaf.dtype in (jnp.float32, jnp.int32)


def _panels_of(variables: Any) -> dict[str, Any]:
    """Make the panels of a target's or drafter's matrices, under the names of their weights.

    A table of embeddings without an output projection beside it is one too. A projection to a
    reduced draft vocabulary counts as the drafter's own.
    """
    weights = flatten_dict(variables.get("params", {}))
    if "lm_head" in variables.get("draft", {}):
        weights["lm_head",] = variables["draft"]["lm_head"]
    tied, made = ("lm_head",) not in weights, {}
    for path, matrix in weights.items():
        table = tied and path == ("embedding",)
        serves = table or path[-1] in ("kernel", "lm_head")
        if serves and matrix.ndim == 2 and matrix.shape[0 if table else 1] % LANES == 0:
            made[path] = _find_or_make(matrix, table)
    return unflatten_dict(made)


def _find_or_make(matrix: jax.Array, transposed: bool) -> jax.Array:
    key = id(matrix), transposed
    found = _made.get(key)
    if found is None or found[0]() is not matrix:
        # Forget the panels with their weights. An identity is used again only after that.
        reference = weakref.ref(matrix, lambda _: _made.pop(key, None))
        found = _made[key] = reference, arrange(matrix, transposed)
    return found[1]


@functools.partial(jax.jit, static_argnames="transposed")
def arrange(matrix: jax.Array, transposed: bool = False) -> jax.Array:
    """Arrange a matrix [in, out], or [out, in] if it is transposed, as [out / LANES, in, LANES]."""
    if transposed:
        return matrix.reshape(-1, LANES, matrix.shape[1]).swapaxes(1, 2)
    return matrix.reshape(matrix.shape[0], -1, LANES).swapaxes(0, 1)


def _memory() -> int:
    """Return the bytes of the machine's memory; 0 where the system does not tell."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return 0
