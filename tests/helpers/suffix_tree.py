"""A suffix tree of counted substrings in plain Python, and suffix decoding on it."""

from __future__ import annotations

import heapq
from collections.abc import Sequence


class Node:
    """A substring: how often it occurs, and what follows it."""

    def __init__(self):
        self.count, self.children = 0, {}


class SuffixTree:
    """All substrings of some texts, up to a length."""

    def __init__(self, texts: Sequence[Sequence[int]], longest: int):
        self.root = Node()
        for text in texts:
            for begin in range(len(text)):
                node = self.root
                for token in text[begin : begin + longest]:
                    node = node.children.setdefault(token, Node())
                    node.count += 1

    def find(self, pattern: Sequence[int]) -> Node | None:
        node = self.root
        for token in pattern:
            node = node.children.get(token)
            if node is None:
                return None
        return node

    def find_suffix(self, text: Sequence[int], longest: int) -> tuple[Node | None, int]:
        """The node of the longest suffix of `text` that something follows, and its length."""
        for length in range(min(longest, len(text)), 0, -1):
            node = self.find(text[len(text) - length :])
            if node is not None and node.children:
                return node, length
        return None, 0


def list_nodes(node: Node | None, depth: int) -> dict[tuple[int, ...], float]:
    """The chances of all paths below a node."""
    found: dict[tuple[int, ...], float] = {}

    def walk(node: Node, path: tuple[int, ...], chance: float) -> None:
        total = sum(child.count for child in node.children.values())
        for token, child in node.children.items():
            found[*path, token] = chance * child.count / total
            if len(path) + 1 < depth:
                walk(child, (*path, token), found[*path, token])

    if node is not None:
        walk(node, (), 1.0)
    return found


def speculate(
    tree: SuffixTree, text: Sequence[int], *, longest: int, depth: int, factor: float
) -> tuple[list[tuple[tuple[int, ...], float]], float]:
    """The best-first tree of up to `factor` times the match's tokens, and the sum of its chances."""
    node, length = tree.find_suffix(text, longest)
    chances = list_nodes(node, depth)
    heap = [(-chance, path) for path, chance in chances.items() if len(path) == 1]
    heapq.heapify(heap)
    chosen: list[tuple[tuple[int, ...], float]] = []
    while heap and len(chosen) < int(factor * length + 1e-6):
        chance, path = heapq.heappop(heap)
        chosen.append((path, -chance))
        for other, value in chances.items():
            if len(other) == len(path) + 1 and other[: len(path)] == path:
                heapq.heappush(heap, (-value, other))
    return chosen, sum(chance for _, chance in chosen)
