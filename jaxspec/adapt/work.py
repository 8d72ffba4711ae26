"""What adaptation computes, as it is counted."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

# Positions of a pass or a gradient step, as both are counted.
POSITIONS = 128


class Steps(NamedTuple):
    """Gradient steps of an update.

    Attributes:
      action: of the update.
      count: number of steps.
      redrafts: whether they draft segments again, and so run the trunk; else they read what is kept.
      anchored: whether they run the drafter before deployment too.
    """

    action: str
    count: int
    redrafts: bool
    anchored: bool


@dataclasses.dataclass(frozen=True)
class Work:
    """What was computed without gradients; what reads more than `POSITIONS` counts as several.

    Attributes:
      passes: forward passes of the drafter over a batch of segments.
      reads: projections of kept outputs of a batch.
    """

    passes: int = 0
    reads: int = 0

    def __add__(self, other: Work) -> Work:
        return Work(self.passes + other.passes, self.reads + other.reads)

    def __sub__(self, other: Work) -> Work:
        return Work(self.passes - other.passes, self.reads - other.reads)
