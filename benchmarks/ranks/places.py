"""Where in a tree a candidate stands, and whether the first candidate there was right.

The spine of a tree follows the drafter's first candidate at every depth. A drafter that does not
know which branch it continues proposes the same tokens after a sibling as after the spine, so its
first candidate is seldom right there. How much less often is this study's own measure of how well a
drafter follows its branches; JetSpec's rank-1 gap, in nats, is that of
`benchmarks.ranks.measure_gaps`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from jaxspec.builders.trees.paths import Paths, make_paths
from jaxspec.call.output import DraftTree, TracedRound

# Places of the node that a candidate follows: on the spine; a first candidate was refused just
# before it, so it is a sibling of the spine; or somewhere below such a sibling.
SPINE, SIBLING, BELOW = PLACES = ("spine", "sibling", "below")


class Seen(NamedTuple):
    """A first candidate whose node the target's text reached.

    Attributes:
      place: of the node that it follows, one of `PLACES`.
      depth: of the candidate, from 1.
      right: whether the text goes on with it.
    """

    place: str
    depth: int
    right: bool


def probe_paths(depth: int, width: int) -> Paths:
    """Return the rank paths of the tree that shows first candidates everywhere.

    The spine has `width - 1` siblings at every depth, and a chain of first candidates goes on below
    each of them.

    Args:
      depth: of the tree, at least 1.
      width: candidates after every node of the spine, at least 1.
    """
    paths = []
    for level in range(depth):
        for rank in range(width):
            head = (*(0,) * level, rank)
            paths.append(head)
            if rank:
                paths.extend(head + (0,) * more for more in range(1, depth - level))
    return make_paths(paths)


def list_seen(round: TracedRound) -> Iterator[Seen]:
    """List the first candidates after the nodes that the text of a round reached.

    Nodes without children in the tree are left out.

    Args:
      round: of a tree whose siblings stand in the order of their ranks.
    """
    tree, place = round.tree, SPINE
    following = [*(int(tree.token[row]) for row in round.path[1:]), round.bonus]
    for i, (row, token) in enumerate(zip(round.path, following, strict=True)):
        children = np.flatnonzero(tree.parent == row)
        if len(children):
            yield Seen(place, i + 1, int(tree.token[children[0]]) == token)
        if i + 1 < len(round.path):
            place = _step(place, rank_of(tree, round.path[i + 1]))


def rank_of(tree: DraftTree, row: int) -> int:
    """Return the rank of a row among its siblings, from 0."""
    return int(np.sum(tree.parent[:row] == tree.parent[row]))


def _step(place: str, rank: int) -> str:
    """Return the place of the child of this rank."""
    if place == SPINE:
        return SPINE if rank == 0 else SIBLING
    return BELOW


def count_seen(texts: Sequence[Sequence[TracedRound]]) -> dict[tuple[str, int], np.ndarray]:
    """Count the first candidates of P texts: {(place, depth): int64 [P, 2], right ones and all}.

    A text's last round is left out, since a stop or the limit may have cut it short.
    """
    counts: dict[tuple[str, int], np.ndarray] = {}
    for index, rounds in enumerate(texts):
        for round in rounds[:-1]:
            for place, depth, right in list_seen(round):
                cell = counts.setdefault((place, depth), np.zeros((len(texts), 2), np.int64))
                cell[index] += (right, 1)
    return counts
