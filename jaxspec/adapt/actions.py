"""What an update may change: the drafter's head, or all of the drafter. Never a tensor of the
target.

The head is the drafter's own output projection with its rank head (SpecBlock, section 3.4).
Drafters that borrow the target's projection have none; their "head" is the output norm and the last
block.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
from flax.traverse_util import flatten_dict, unflatten_dict

from jaxspec.core.runtime.near_miss import choose_one

HEAD, FULL, SKIP, BOTH = "head", "full", "skip", "both"
ACTIONS = (HEAD, FULL)
_PROJECTIONS = ("lm_head", "rank_inner", "rank_outer")
_BLOCK = re.compile(r"(layers|block)_(\d+)$")
# Embeddings of a drafter that has its own; few of their rows ever see a gradient.
_FROZEN = ("embedding",)

Leaves = dict[tuple[str, ...], jax.Array]


def select_leaves(params: Any, action: str) -> Leaves:
    """Select the arrays of `params`, the drafter's trained weights, that an action changes.

    Raises:
      ValueError: the action is unknown, or the drafter has nothing that it could change.
    """
    leaves = flatten_dict(params)
    if action not in ACTIONS:
        raise ValueError(f"action is {action!r}: {choose_one(action, ACTIONS)}")
    chosen = _is_trained if action == FULL else _find_head(leaves)
    found = {path: leaf for path, leaf in leaves.items() if chosen(path)}
    if not found:
        raise ValueError("this drafter has no weights to adapt: choose another method")
    return found


def merge_leaves(params: Any, leaves: Leaves) -> Any:
    """Return `params` with some arrays replaced."""
    return unflatten_dict(flatten_dict(params) | leaves)


def check_unshared(drafter: Any, target: Any) -> None:
    """Raise a ValueError if a drafter's array is also one of the target's."""
    ours = {id(leaf): path for path, leaf in jax.tree_util.tree_leaves_with_path(drafter)}
    for leaf in jax.tree.leaves(target):
        if id(leaf) in ours:
            name = jax.tree_util.keystr(ours[id(leaf)])
            raise ValueError(f"the drafter's {name} is a tensor of the target: copy it first")


def _is_trained(path: tuple[str, ...]) -> bool:
    return path[-1] not in _FROZEN


def _find_head(leaves: Leaves) -> Callable[[tuple[str, ...]], bool]:
    """Return what tells whether a path belongs to the head."""
    if any(path[0] in _PROJECTIONS for path in leaves):
        return lambda path: path[0] in _PROJECTIONS
    blocks = [(int(found[2]), path[0]) for path in leaves if (found := _BLOCK.match(path[0]))]
    last = {max(blocks)[1]} if blocks else {"attention", "mlp", "mlp_norm"}
    return lambda path: path[0] in last | {"norm"}
