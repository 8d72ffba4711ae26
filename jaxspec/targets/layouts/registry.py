"""All layouts, and what the variables of a target or drafter tell of theirs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import flax.linen as nn
import jax
from flax.traverse_util import flatten_dict, unflatten_dict

from jaxspec.targets.layouts.copies import COPIES
from jaxspec.targets.layouts.four_bits import FOUR_BIT
from jaxspec.targets.layouts.layout import Layout
from jaxspec.targets.layouts.quant import QUANTISED

# By name, those that replace weights first.
LAYOUTS: Mapping[str, Layout] = {
    one.name: one for one in (*QUANTISED.values(), FOUR_BIT, *COPIES.values())
}
_COLLECTIONS = tuple(dict.fromkeys(one.collection for one in LAYOUTS.values()))
_COPIED = tuple(dict.fromkeys(one.collection for one in LAYOUTS.values() if one.copies))


def find_added(variables: Mapping[str, Any] | nn.Module, name: str) -> dict[str, jax.Array]:
    """Find what layouts add to a parameter of a module, or at the top of variables.

    Returns:
      {collection: array}.
    """
    if isinstance(variables, nn.Module):
        found = {kind: variables.get_variable(kind, name) for kind in _COLLECTIONS}
    else:
        found = {kind: variables.get(kind, {}).get(name) for kind in _COLLECTIONS}
    return {kind: array for kind, array in found.items() if array is not None}


def find_layouts(
    weights: jax.Array | None, added: Mapping[str, jax.Array]
) -> list[tuple[Layout, jax.Array]]:
    """Find the layouts of an array, each with what it adds; that of the weights comes first."""
    return [
        (one, added[one.collection])
        for one in LAYOUTS.values()
        if one.collection in added and one.owns(weights, added[one.collection])
    ]


def find_layout(variables: Mapping[str, Any]) -> Layout | None:
    """Return the layout of a target's or drafter's matrices; None if they lie as they were trained.

    Of a model with copies, it is that of the copies.
    """
    for kind in _COLLECTIONS:
        for path, array in _walk(variables.get(kind, {})):  # calls ask: one of many is enough
            weights = _look_up(variables.get("params", {}), path)
            return find_layouts(weights, {kind: array})[0][0]
    return None


def _walk(tree: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[Any, jax.Array]]:
    """Yield the arrays of nested dicts with their paths, in JAX's order."""
    for name, one in sorted(tree.items()):
        if isinstance(one, Mapping):
            yield from _walk(one, (*path, name))
        else:
            yield (*path, name), one


def _look_up(tree: Any, path: tuple[str, ...]) -> jax.Array | None:
    """Return what lies at a path of nested dicts; None if nothing does."""
    for name in path:
        if name not in tree:
            return None
        tree = tree[name]
    return tree


def converts(variables: Mapping[str, Any]) -> bool:
    """Whether products of a target convert its weights as they read them."""
    return any(one.collection in variables for one in LAYOUTS.values() if one.converts)


def is_per_output(collection: str) -> bool:
    """Whether the arrays of a collection have an entry for each output and no input axis."""
    return any(one.per_output for one in LAYOUTS.values() if one.collection == collection)


def strip(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return variables without copies of their weights."""
    return {name: one for name, one in variables.items() if name not in _COPIED}


def some_weight(*variables: Mapping[str, Any]) -> jax.Array:
    """Return an array that tells these variables from others, whether or not they have copies."""
    return next(array for one in variables for _, array in _walk(strip(one)))


def like(variables: Mapping[str, Any], other: Mapping[str, Any]) -> Any:
    """Add copies to variables as `other`, variables of the same shapes, has them."""
    for kind in _COPIED:
        if kind not in other:
            continue
        layout = find_layout({kind: other[kind]})
        # Without matrices to copy the collection is empty. It stays, or programs would compile
        # again.
        variables = add_copies(variables, layout) if layout else {**variables, kind: {}}
    return variables


def add_copies(
    variables: Mapping[str, Any],
    layout: Layout,
    arrange: Callable[[jax.Array, int], jax.Array] | None = None,
) -> dict[str, Any]:
    """Add copies of all matrices that a target's or drafter's products read, under their names.

    A table of embeddings without an output projection beside it is one too. A projection to a
    reduced draft vocabulary counts as the drafter's own. Matrices whose outputs do not divide into
    the layout have none.

    Args:
      layout: of copies.
      arrange: (matrix, input axis) -> copy (default: the layout's own).
    """
    weights = flatten_dict(variables.get("params", {}))
    if "lm_head" in variables.get("draft", {}):
        weights["lm_head",] = variables["draft"]["lm_head"]
    tied, made = ("lm_head",) not in weights, {}
    arrange = arrange or (lambda matrix, axis: layout.arrange(matrix, axis)[1])
    for path, matrix in weights.items():
        axis = -1 if tied and path == ("embedding",) else -2
        read = axis == -1 or path[-1] in ("kernel", "lm_head")
        if read and matrix.ndim == 2 and matrix.shape[-3 - axis] % layout.side_by_side == 0:
            made[path] = arrange(matrix, axis)
    return {**variables, layout.collection: unflatten_dict(made)}
