"""Rank paths: the nodes of a fixed tree, each as the ranks of the candidates from the root to it."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from operator import index

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


def choose_paths(
    slots: int,
    blocks: int,
    nodes: int,
    depth: int | None = None,
    choices: int | None = None,
    hit: float = 0.6,
) -> Paths:
    """The most probable paths, best first, if the candidate of rank r held with hit * (1 - hit) ** r.

    Ours; Falcon's authors draw their trees by hand. Nothing is drafted behind a block's end unless
    the tokens before its last one are the most probable, since block drafters assume that.

    Args:
      slots, blocks: tokens of a proposal, and proposals on a path.
      nodes: of the tree, the root not counted; fewer where depth and choices allow no more.
      depth: of the longest path; None: slots * blocks.
      choices: ranks of a slot; None: as many as are wanted.

    Raises:
      ValueError: `hit` is no probability between 0 and 1.
    """
    if not 0 < hit < 1:
        raise ValueError(f"hit is {hit}: give a probability between 0 and 1")
    longest = slots * blocks if depth is None else min(depth, slots * blocks)
    down, aside = -math.log(hit), -math.log(1 - hit)
    queue, paths = [(down, (0,))], []
    while queue and len(paths) < nodes:
        cost, path = heapq.heappop(queue)
        paths.append(path)
        if choices is None or path[-1] + 1 < choices:
            heapq.heappush(queue, (cost + aside, (*path[:-1], path[-1] + 1)))
        inside = len(path) % slots or not any(path[-slots:-1])
        if inside and len(path) < longest:
            heapq.heappush(queue, (cost + down, (*path, 0)))
    return tuple(paths)
