"""What updates of each action are worth, and which one to try next.

Values start above zero and drift back there while nothing is trained, so no state is final.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from jaxspec.adapt.actions import ACTIONS, SKIP
from jaxspec.adapt.deciders.base import Query


@dataclasses.dataclass(frozen=True)
class ExploreOptions:
    """What both bandits share: their first queries, and how often they explore.

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


@dataclasses.dataclass(frozen=True)
class Values(ExploreOptions):
    """The functions of the values; their state is plain data.

    Attributes, besides those of `ExploreOptions`:
      first: value of every action at the start.
      drift: share of the way back to `first` that a value goes per window without an update.
      window: queries of such a window.
      floor: chance of exploring after the cold start.
    """

    first: float = 0.01
    drift: float = 0.02
    window: int = 32
    floor: float = 0.02

    def init(self) -> dict[str, Any]:
        """Return the state before the first query."""
        known = dict.fromkeys(ACTIONS, self.first)
        # Queries since the latest update, and updates since exploration was armed.
        return {"known": known, "idle": 0, "armed": 0}

    def add(self, state: dict[str, Any]) -> dict[str, Any]:
        """Count a query without an update, and let values return to where they began."""
        idle, known = state["idle"] + 1, state["known"]
        if not idle % self.window:
            known = {
                action: value + self.drift * (self.first - value) if value < 0 else value
                for action, value in known.items()
            }
        return state | {"idle": idle, "known": known}

    def arm(self, state: dict[str, Any]) -> dict[str, Any]:
        """Explore again, with values not below where they began."""
        known = {action: max(value, self.first) for action, value in state["known"].items()}
        return state | {"known": known, "armed": 0}

    def choose(self, state: dict[str, Any], query: Query) -> str:
        """Return the action to try: by chance, else the best one, or `skip` if all lose."""
        if query.draws[0] < self.chance(state["armed"], self.floor):
            return ACTIONS[int(2 * query.draws[1])]
        best = max(ACTIONS, key=lambda action: state["known"][action])
        return best if state["known"][best] > 0 else SKIP

    def learn(self, state: dict[str, Any], action: str, earned: float) -> dict[str, Any]:
        """Add what an update of the action earned: the share of errors that it removed, less cost."""
        known = state["known"] | {action: self.average(state["known"][action], earned)}
        return {"known": known, "idle": 0, "armed": state["armed"] + 1}
