"""Has the text changed? (Page 1954, Hinkley 1970)

The pace of a query is the logarithm of its tokens per round. Its deviations from a running mean, in
standard deviations, are summed up in both directions, less a slack. A sum that passes a threshold
is an alarm. Of the queries since that sum was last zero, the new text begins where a step of the
mean is most likely: a drafter that learns is faster and faster, and that alone is no new text. A
stream whose domains take turns has a wide spread, so it alarms no more often than one of a single
domain.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any

from jaxspec.adapt.deciders.base import Query


@dataclasses.dataclass(frozen=True)
class Shift:
    """The functions of the test; its state is plain data.

    Attributes:
      alarm: threshold of the sums. slack: tolerance. Both in standard deviations, as all below.
      outlier: what a single query counts at most; it is no alarm alone.
      learned: queries before the test begins.
      memory: queries of the running mean and spread.
      floor: smallest standard deviation.
    """

    alarm: float = 10.0
    slack: float = 0.5
    outlier: float = 6.0
    learned: int = 8
    memory: int = 32
    floor: float = 0.1

    def init(self) -> dict[str, Any]:
        """Return the state before the first query, of which nothing is known."""
        known = {"seen": 0, "count": 0, "mean": 0.0, "variance": 0.0}
        return known | {"fall": [], "rise": []}

    def add(self, state: dict[str, Any], query: Query) -> tuple[dict[str, Any], int | None]:
        """Add a query.

        Returns:
          The new state, and after an alarm the number of queries of the new text, else None.
        """
        off = math.log(max(query.pace, 1e-9)) - state["mean"]
        seen, count, moved = state["seen"] + 1, state["count"] + 1, state
        if seen > self.learned:
            spread = max(math.sqrt(state["variance"]), self.floor)
            for name, sign in (("fall", -1), ("rise", 1)):
                changes = [*state[name], sign * off / spread][-self.memory :]
                total = sum(self._limit(change) - self.slack for change in changes)
                if total > self.alarm:
                    return self._start(state, sign, changes, spread)
                moved = moved | {name: changes if total > 0 else []}
            off = spread * self._limit(off / spread)  # an outlier does not move the spread far
        share = 1 / min(seen, self.memory)
        variance = (1 - share) * (state["variance"] + share * off**2)
        mean = state["mean"] + off / min(count, self.memory)
        known = {"seen": seen, "count": count, "mean": mean, "variance": variance}
        return moved | known, None

    def _start(
        self, state: dict[str, Any], sign: int, changes: list[float], spread: float
    ) -> tuple[dict[str, Any], int]:
        """Start again with the new text: its mean, and the spread of the old one."""
        fresh = find_step(changes)
        mean = state["mean"] + sign * spread * sum(changes[-fresh:]) / fresh
        known = {"seen": state["seen"] + 1, "count": fresh, "mean": mean, "variance": spread**2}
        return self.init() | known, fresh

    def _limit(self, change: float) -> float:
        return max(-self.outlier, min(self.outlier, change))


def find_step(changes: Sequence[float]) -> int:
    """Return how many of the last values have another mean than those before, most likely.

    Before the step the mean is 0. The likelihood of a step before the last n values, whose sum is
    S, grows with S**2 / n.
    """
    tails = itertools.accumulate(reversed(changes))
    scores = [total**2 / n for n, total in enumerate(tails, 1)]
    return 1 + max(range(len(scores)), key=scores.__getitem__)
