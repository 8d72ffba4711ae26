"""What both bandits share: their first queries, and how often they explore."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class ExploreOptions:
    """Constants of both rules.

    Attributes:
      rate: alpha of the exponential averages.
      warm_up: queries before anything is trained.
      cold_start: updates that explore.
      explore: chance of exploring at the first of these updates and at the last.
    """

    rate: float = 0.10
    warm_up: int = 10
    cold_start: int = 8
    explore: tuple[float, float] = (0.30, 0.10)

    def chance(self, updates: int, after: float = 0.0) -> float:
        """Return the chance of exploring after some updates; it falls linearly, then it is `after`."""
        if updates >= self.cold_start:
            return after
        high, low = self.explore
        return high + (low - high) * updates / max(self.cold_start - 1, 1)

    def average(self, old: float, new: float) -> float:
        """Move an exponential average."""
        return (1 - self.rate) * old + self.rate * new
