"""Publication: replace a drafter's weights while the engine serves."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from jaxspec.core.params import Params
from jaxspec.targets.layouts.registry import like, strip


def replace_drafter(params: Params, drafter: str, weights: Any) -> Params:
    """Return the parameters with other weights of a drafter. Programs for the old ones run the new.

    Args:
      drafter: name of the drafter.
      weights: arrays of the names, shapes and dtypes of the drafter's own; they are copied.

    Raises:
      ValueError: an array is missing, unknown, or of another shape or dtype.
    """
    given = params.drafter(drafter)
    own, new = strip(given), strip(weights)
    _check_arrays(drafter, own, new)
    new = jax.tree.map(_copy_like, own, new)
    return params.replace(drafters={**params.drafters, drafter: like(new, given)})


def find_published(drafter: str, drafters: tuple[str, ...]) -> int:
    """Return the number, from 1, of the drafter whose weights an engine is to replace.

    Args:
      drafters: names of the engine's drafters, or `ar`.

    Raises:
      ValueError: it has no such drafter, or several processes share the target.
    """
    names = [name for name in drafters if name != "ar"]
    if drafter not in names:
        known = " or ".join(map(repr, names))
        says = f"give {known}" if names else "the engine has no drafter"
        raise ValueError(f"drafter is {drafter!r}: {says}")
    if jax.process_count() > 1:
        raise ValueError("several processes share the target: start them again to publish weights")
    return 1 + names.index(drafter)


def _check_arrays(drafter: str, own: Any, new: Any) -> None:
    expected, found = _describe(own), _describe(new)
    for name in [*expected, *found]:
        if expected.get(name) != found.get(name):
            raise ValueError(
                f"weights of {drafter!r}: {name} is {found.get(name, 'missing')}, and the "
                "engine's is "
                f"{expected.get(name, 'missing')}: give arrays of the same names, shapes and dtypes"
            )


def _describe(weights: Any) -> dict[str, str]:
    """Describe the arrays of a pytree by their names."""
    return {
        jax.tree_util.keystr(path): f"{np.dtype(leaf.dtype).name}{list(leaf.shape)}"
        for path, leaf in jax.tree_util.tree_leaves_with_path(weights)
    }


def _copy_like(own: jax.Array, new: Any) -> jax.Array:
    """Copy an array to where `own` is, without a program to compile.

    Calls find their programs by shapes, and by whether arrays are bound to devices.
    """
    if own.committed:
        return jax.device_put(new, own.sharding, may_alias=False)
    # What is bound to a device stays so, unless it passes the host.
    bound = isinstance(new, jax.Array) and new.committed
    return jax.device_put(np.asarray(new) if bound else new, may_alias=False)
