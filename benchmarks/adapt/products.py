"""Count the operations of a function's matrix products, without running it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax


def count_products(function: Callable[..., Any], *arguments: Any) -> float:
    """Count 2 operations per multiplication of the function's matrix products.

    Bodies of scans count as often as they run. Of branches the dearest counts, and of loops whose
    turns are not known one turn.
    """
    return _count(jax.make_jaxpr(function)(*arguments).jaxpr)


def _count(jaxpr: Any) -> float:
    total = 0.0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            shape = equation.invars[0].aval.shape
            inner = math.prod(shape[axis] for axis in contracted)
            total += 2.0 * inner * math.prod(equation.outvars[0].aval.shape)
            continue
        inside = [_count(one) for one in _find_jaxprs(equation.params)]
        if equation.primitive.name == "cond":
            total += max(inside)
        else:
            total += equation.params.get("length", 1) * sum(inside)
    return total


def _find_jaxprs(params: dict[str, Any]) -> list[Any]:
    """Return the jaxprs among an equation's parameters."""
    found = []
    for value in params.values():
        for each in value if isinstance(value, (tuple, list)) else (value,):
            each = getattr(each, "jaxpr", each)
            if hasattr(each, "eqns"):
                found.append(each)
    return found
