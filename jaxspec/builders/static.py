"""Any fixed tree, given as the rank paths of its nodes: Medusa's `choices`.

`[[0], [0, 0], [1]]` is the best candidate of depth 1, under it the best of depth 2, and the second
best of depth 1. Every node must be listed: `[0, 1]` asks for `[0]`. Which nodes there are is
static, their tokens and their order follow the round's candidates: rows are sorted by score as in
every tree of jaxspec, equal ones by rank path.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import index

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.builders.rows import sorted_tree
from jaxspec.builders.scores import NEVER, Cost, add, from_logprob
from jaxspec.core.state import Tree

Paths = tuple[tuple[int, ...], ...]


def make_paths(paths: Iterable[Sequence[int]]) -> Paths:
    """`paths` checked and as a hashable value, in lexicographic order: equal trees in any order
    give equal values.

    Raises:
      ValueError: no paths, something else than lists of ranks, a path listed twice, or one whose
        parent is not listed.
    """
    try:
        made = sorted(tuple(index(rank) for rank in path) for path in paths)
    except TypeError:
        raise ValueError(
            "paths must be a list of lists of ranks, as in [[0], [0, 0], [1]]"
        ) from None
    if not made:
        raise ValueError(
            "paths is empty: list the rank path of every node, as in [[0], [0, 0], [1]]"
        )
    listed = {()}
    for path in made:
        if not path or min(path) < 0:
            raise ValueError(
                f"path {list(path)} is not a node: give one or more ranks, from 0 (the root is not listed)"
            )
        if path in listed:
            raise ValueError(f"path {list(path)} is listed twice")
        if path[:-1] not in listed:
            raise ValueError(f"path {list(path)} has no parent: list {list(path[:-1])} too")
        listed.add(path)
    return tuple(made)


def skips_ranks(paths: Paths) -> bool:
    """Whether a node has a sibling of some rank and not those of all lower ranks."""
    listed = set(paths)
    return any(path[-1] and (*path[:-1], path[-1] - 1) not in listed for path in paths)


def static(
    token: jax.Array,
    logprob: jax.Array,
    root: jax.Array,
    depth_limit: jax.Array,
    rows: int,
    paths: Paths,
) -> Tree:
    """Build one tree (no batch axis) of `rows` = 1 + len(paths) rows; arguments as in `best_first`.

    Args:
      paths: from `make_paths`; ranks below C, at most D long. Static.
    """
    depths, width = logprob.shape
    id_of = {path: i for i, path in enumerate([(), *paths])}
    parent = np.array([-1, *(id_of[path[:-1]] for path in paths)], np.int32)
    flat = np.array([0, *((len(path) - 1) * width + path[-1] for path in paths)], np.int32)
    steps = from_logprob(logprob, depth_limit)
    cost = Cost(jnp.zeros(rows, jnp.uint32), jnp.zeros(rows, jnp.uint32))
    for depth in range(depths):
        below = np.array([len(path) > depth for path in [(), *paths]])
        rank = np.array(
            [path[depth] if len(path) > depth else 0 for path in [(), *paths]], np.int32
        )
        deeper = add(cost, Cost(steps.hi[depth, rank], steps.lo[depth, rank]))
        cost = Cost(jnp.where(below, deeper.hi, cost.hi), jnp.where(below, deeper.lo, cost.lo))
    hi, lo, order = jax.lax.sort((*cost, jnp.arange(rows, dtype=jnp.int32)), num_keys=3)
    return sorted_tree(
        token,
        logprob,
        root,
        order=order,
        parent=jnp.asarray(parent)[order],
        index=jnp.asarray(flat)[order],
        size=jnp.sum(hi != NEVER, dtype=jnp.int32),
        max_depth=depths,
        cost=Cost(hi, lo),
    )
