"""Count the nodes of a full tree without building it."""

from __future__ import annotations


def count_nodes(width: int, depth: int, enough: int) -> int:
    """Count the nodes of the full `width`-ary tree of `depth` levels, the root included.

    Counting stops at `enough`.
    """
    total = level = 1
    for _ in range(depth):
        level *= width
        total += level
        if total >= enough:
            break
    return total
