"""Copy a model's weights into panels, or transposed, where rounds of few rows are faster with them."""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict

from jaxspec.core.config import TargetConfig
from jaxspec.core.params import Params
from jaxspec.targets.layouts.panel_speed import FEW, LANES, choose_sizes, fastest_lanes
from jaxspec.targets.layouts.panels import COLLECTION, TRANSPOSED, arrange, lanes_of, most_rows
from pallas_kernels.versions import vectorizes_sums

# Largest share of the machine's memory that a copy of a model may take. Calls of one sequence and of
# several may read different ones.
MOST_MEMORY = 0.25
# Environment variable: 0 makes no panels, a number of LANES makes them without measuring.
SWITCH = "JAXSPEC_PANELS"

# Panels by the identity of their weights, with a reference that tells whether these still exist.
_made: dict[tuple[int, int, bool], tuple[weakref.ref, jax.Array]] = {}


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

    Raises:
      ValueError: `JAXSPEC_PANELS` is neither 0 nor one of `LANES`.
    """
    methods = (method,) if isinstance(method, str) else tuple(method)
    # Rounds that draft verify two rows of a sequence at least, and most often `FEW`.
    rows, usual = (batch, batch) if methods == ("ar",) else (2 * batch, FEW * batch)
    weights = [params.target, *map(params.drafter, methods)]
    # Only calls that may read a copy wait for its measurement.
    if not 1 < rows <= most_rows(TRANSPOSED) or not _suit(weights):
        return params
    lanes = _choose_lanes(params.spec.target, usual)
    if not lanes or rows > most_rows(lanes):
        return params
    target, *drafters = [_with_panels(one, lanes) if one else one for one in weights]
    made = {name: one for name, one in zip(methods, drafters, strict=True) if one}
    return params.replace(target=target, drafters={**params.drafters, **made})


def with_panels_like(weights: Any, other: Any) -> Any:
    """Add panels to variables if `other`, variables of the same shapes, have them."""
    if COLLECTION not in other:
        return weights
    lanes = lanes_of(other)
    # Without matrices to copy the collection is empty. It stays, or programs would compile again.
    return _with_panels(weights, lanes) if lanes else {**weights, COLLECTION: {}}


def _with_panels(weights: Any, lanes: int) -> Any:
    return {**weights, COLLECTION: _panels_of(weights, lanes)}


def _choose_lanes(config: TargetConfig, rows: int) -> int:
    """Return the outputs that panels have side by side; 0 if this processor is to have none.

    Args:
      config: the target.
      rows: rows that most rounds of all sequences verify together.

    Raises:
      ValueError: the switch is neither 0 nor one of `LANES`.
    """
    if not vectorizes_sums():
        return 0
    switch = os.environ.get(SWITCH)
    if not switch:
        return fastest_lanes(choose_sizes(config, rows))
    choices = [str(lanes) for lanes in (0, *LANES)]
    if switch not in choices:
        raise ValueError(f"{SWITCH} is {switch!r}: give one of {', '.join(choices)}, or unset it")
    return int(switch)


def _suit(weights: Any) -> bool:
    """Whether panels of these arrays can be made, and fit into the memory."""
    leaves = jax.tree.leaves(weights)
    if not all(map(_suits, leaves)):
        return False
    return sum(leaf.nbytes for leaf in leaves) <= MOST_MEMORY * _memory()


def _suits(leaf: Any) -> bool:
    """Whether an array is concrete, on one CPU device, and neither quantised nor of a short float."""
    if not isinstance(leaf, jax.Array) or isinstance(leaf, jax.core.Tracer):
        return False
    kinds = {device.platform for device in leaf.devices()}
    return kinds == {"cpu"} and len(leaf.devices()) == 1 and leaf.dtype in (jnp.float32, jnp.int32)


def _panels_of(variables: Any, lanes: int) -> dict[str, Any]:
    """Make the panels of a target's or drafter's matrices, under the names of their weights.

    A table of embeddings without an output projection beside it is one too; it is transposed as it
    is. A projection to a reduced draft vocabulary counts as the drafter's own.
    """
    weights = flatten_dict(variables.get("params", {}))
    if "lm_head" in variables.get("draft", {}):
        weights["lm_head",] = variables["draft"]["lm_head"]
    tied, made = ("lm_head",) not in weights, {}
    for path, matrix in weights.items():
        table = tied and path == ("embedding",)
        serves = table or path[-1] in ("kernel", "lm_head")
        if serves and matrix.ndim == 2 and matrix.shape[0 if table else 1] % lanes == 0:
            made[path] = _find_or_make(matrix, lanes, table)
    return unflatten_dict(made)


def _find_or_make(matrix: jax.Array, lanes: int, transposed: bool) -> jax.Array:
    if transposed and lanes == TRANSPOSED:
        return matrix
    key = id(matrix), lanes, transposed
    found = _made.get(key)
    if found is None or found[0]() is not matrix:
        # Forget the panels with their weights. An identity is used again only after that.
        reference = weakref.ref(matrix, lambda _: _made.pop(key, None))
        found = _made[key] = reference, arrange(matrix, lanes, transposed)
    return found[1]


def _memory() -> int:
    """Return the bytes of the machine's memory; 0 where the system does not tell."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return 0
