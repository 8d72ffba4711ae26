"""The paired test: is an update better at the same held-out positions? (McNemar 1947)

Every position is its own stratum, so that the test over all domains is the sum of theirs.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np


class Flips(NamedTuple):
    """Held-out positions before and after an update.

    Attributes:
      up: positions that became right.
      down: positions that became wrong.
      held: all of them.
      missed: those that were wrong before.
    """

    up: int
    down: int
    held: int
    missed: int

    @property
    def z(self) -> float:
        """McNemar's statistic, 0 if nothing changed."""
        changed = self.up + self.down
        return (self.up - self.down) / math.sqrt(changed) if changed else 0.0


def count_flips(before: np.ndarray, after: np.ndarray, held: np.ndarray) -> Flips:
    """Count what an update changed.

    Args:
      before, after: bool [...], whether the drafter's first choice was the target's.
      held: [...], nonzero for held-out positions.
    """
    inside = held > 0
    return Flips(
        up=int((inside & after & ~before).sum()),
        down=int((inside & before & ~after).sum()),
        held=int(inside.sum()),
        missed=int((inside & ~before).sum()),
    )
