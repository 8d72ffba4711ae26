"""How many nodes a full tree has, known before any is built."""

from __future__ import annotations


def count_nodes(width: int, depth: int, enough: int) -> int:
    """Nodes of the full `width`-ary tree of `depth` levels, the root included; counting stops at
    `enough`.
    """
    total = level = 1
    for _ in range(depth):
        level *= width
        total += level
        if total >= enough:
            break
    return total
