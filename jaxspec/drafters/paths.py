"""Static trees for drafters of which only the sizes are known."""

from __future__ import annotations

import heapq
import math
from typing import Any

from jaxspec.drafters.registry import make_drafter


def static_paths(config: Any, rows: int) -> list[tuple[int, ...]]:
    """A tree of at most `rows` rows, the root included, for builder `static`, by the slots and depth
    of the drafter of `config`; see `likely_paths`.
    """
    slots = make_drafter(config).slots
    return likely_paths(slots, -(-config.depth // slots), rows - 1)


def likely_paths(slots: int, blocks: int, nodes: int, hit: float = 0.6) -> list[tuple[int, ...]]:
    """Rank paths of the most probable static tree, if the candidate of rank r were the target's
    token with probability hit * (1 - hit) ** r.

    Nothing is drafted after a block's end unless all tokens of the block before its last one are
    the most probable, since that is what drafters of blocks assume (Falcon's authors draw their
    trees by hand).

    Args:
      slots, blocks: of the drafter; paths are at most slots * blocks long. nodes: of the tree, the
        root not counted.
    """
    if not 0 < hit < 1:
        raise ValueError(f"hit is {hit}: give a probability between 0 and 1")
    down, aside = -math.log(hit), -math.log(1 - hit)
    queue, paths = [(down, (0,))], []
    while queue and len(paths) < nodes:
        cost, path = heapq.heappop(queue)
        paths.append(path)
        heapq.heappush(queue, (cost + aside, (*path[:-1], path[-1] + 1)))
        inside = len(path) % slots or not any(path[-slots:-1])
        if inside and len(path) < slots * blocks:
            heapq.heappush(queue, (cost + down, (*path, 0)))
    return paths
