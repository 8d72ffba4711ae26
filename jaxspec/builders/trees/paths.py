"""Rank paths: each node of a fixed tree as the ranks of the candidates from the root to it."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from operator import index

Paths = tuple[tuple[int, ...], ...]


def make_paths(paths: Iterable[Sequence[int]]) -> Paths:
    """Check `paths` and return them as a hashable value in lexicographic order.

    Equal trees in any order give equal values.

    Raises:
      ValueError: there are no paths, one is not a list of ranks or is listed twice, or its parent
        is not listed.
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
                f"path {list(path)} is not a node: give one or more ranks, from 0 (the root is "
                "not listed)"
            )
        if path in listed:
            raise ValueError(f"path {list(path)} is listed twice")
        if path[:-1] not in listed:
            raise ValueError(f"path {list(path)} has no parent: list {list(path[:-1])} too")
        listed.add(path)
    return tuple(made)


def skips_ranks(paths: Paths) -> bool:
    """Whether a node of rank above 0 lacks the sibling of the next lower rank."""
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
    """Return the most probable paths, best first, in a model of the acceptance.

    The model: the candidate of rank r is right with probability hit * (1 - hit) ** r. This is our
    own choice; Falcon's authors draw their trees by hand. Nothing is drafted after a block's end
    unless the tokens before its last one are the most probable, since block drafters assume that.

    Args:
      slots: tokens per proposal.
      blocks: maximum number of proposals on a path.
      nodes: nodes of the tree, the root not counted; the tree has fewer if depth and choices allow
        no more.
      depth: length of the longest path; None is slots * blocks.
      choices: ranks per slot; None for no limit.
      hit: probability that the best candidate is right.

    Raises:
      ValueError: `hit` is not between 0 and 1.
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
