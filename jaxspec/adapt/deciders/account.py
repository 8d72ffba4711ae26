"""The account that updates are paid from, so that trying costs little where it brings nothing.

It earns a share of all time, and of what published updates are believed to save. It is kept in the
seconds of the decider's clock.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from jaxspec.adapt.actions import ACTIONS, FULL
from jaxspec.adapt.deciders.base import Query, UpdateResult


@dataclasses.dataclass(frozen=True)
class Account:
    """The functions of the account; its state is plain data.

    Attributes:
      allowance: share of the time that updates may take without gaining anything.
      believed: share of a published update's expected saving that is credited.
      memory: queries of the running mean of their seconds.
      reach: queries after which evidence is too old for an update.
    """

    allowance: float = 0.01
    believed: float = 0.5
    memory: int = 32
    reach: int = 64

    def init(self) -> dict[str, Any]:
        """Return the state before the first query."""
        return {
            "balance": 0.0,
            "mean": 0.0,  # seconds of a query
            "costs": dict.fromkeys(ACTIONS, 0.0),  # seconds of the latest update of each action
        }

    def earn(self, state: dict[str, Any], query: Query, seen: int) -> dict[str, Any]:
        """Add what a query earns; `seen` queries were counted, this one included."""
        mean = state["mean"] + (query.seconds - state["mean"]) / min(seen, self.memory)
        balance = state["balance"] + self.allowance * query.seconds
        return state | {"mean": mean, "balance": balance}

    def settle(self, state: dict[str, Any], update: UpdateResult, saved: float) -> dict[str, Any]:
        """Pay an update, and add what it is expected to save, in seconds."""
        costs = state["costs"] | {update.action: update.seconds}
        costs[FULL] = costs[FULL] or 2 * update.seconds  # a guess, until there is one
        balance = state["balance"] + self.believed * saved - update.seconds
        return state | {"balance": balance, "costs": costs}

    def pays(self, state: dict[str, Any], query: Query, action: str) -> bool:
        """Whether an update can be paid now; one without a known price can."""
        return state["balance"] >= self._price(state, query, action)

    def reaches(self, state: dict[str, Any], query: Query) -> bool:
        """Whether any update can be paid before the evidence of the next query is too old."""
        soon = state["balance"] + self.reach * self.allowance * state["mean"]
        return any(soon >= self._price(state, query, action) for action in ACTIONS)

    def _price(self, state: dict[str, Any], query: Query, action: str) -> float:
        return state["costs"][action] or query.prices.get(action, 0.0)
