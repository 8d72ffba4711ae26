"""Older versions that may decode a new text better, and when to compare them.

What an update forgets of one text is not lost as long as an older version can decode again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from jaxspec.adapt.deciders.base import Query
from jaxspec.adapt.gate import Flips


@dataclasses.dataclass(frozen=True)
class Rivals:
    """The functions of the comparison; its state is plain data.

    Attributes:
      looks: queries after a change of the text at which older versions are compared.
      sure, lost: standard errors by which an older version must win to decode again, and by which
        one, but for the first, must lose to be compared no more.
      homes: versions that are remembered because they decoded before a change.
    """

    looks: tuple[int, ...] = (0, 2, 6, 14)
    sure: float = 1.5
    lost: float = 3.0
    homes: int = 2

    def init(self) -> dict[str, Any]:
        """Return the state before the first query."""
        return {
            "age": None,  # queries since the latest change
            "before": 0,  # version that decoded before the newest one
            "homes": [],  # versions that decoded at the last changes
            "versions": [],  # that may do better on the text since the latest change
        }

    def add(self, state: dict[str, Any]) -> dict[str, Any]:
        """Count a query."""
        return state if state["age"] is None else state | {"age": state["age"] + 1}

    def change(self, state: dict[str, Any], version: int) -> dict[str, Any]:
        """Begin with a new text, whose first queries `version` decoded."""
        versions = {0, state["before"], *state["homes"]} - {version}
        homes = [home for home in state["homes"] if home != version]
        homes = [*homes, version][-self.homes :]
        return state | {"age": 0, "homes": homes, "versions": sorted(versions)}

    def look(
        self, state: dict[str, Any], query: Query
    ) -> tuple[()] | tuple[tuple[int, ...], int | None]:
        """Return the last two fields of a decision: what to compare, and on what; or nothing."""
        if state["age"] not in self.looks or not state["versions"]:
            return ()
        # Where the new text began is a guess. What came after the alarm is new for certain.
        since = query.index + 1 - state["age"] if state["age"] else None
        return tuple(state["versions"]), since

    def waits(self, state: dict[str, Any]) -> bool:
        """Whether older versions are still to be compared on the newest text."""
        age = state["age"]
        return bool(state["versions"]) and age is not None and age < max(self.looks)

    def elect(
        self, state: dict[str, Any], flips: Mapping[int, Flips]
    ) -> tuple[dict[str, Any], int | None]:
        """Return the version that decodes next; None: the one that did."""
        best = max(flips, key=lambda version: flips[version].z)
        if flips[best].z >= self.sure:
            return state | {"versions": [0] if best else []}, best
        # The first version is on the device, so that comparing it again costs little.
        lost = {version for version in flips if version and flips[version].z <= -self.lost}
        versions = [version for version in state["versions"] if version not in lost]
        return state | {"versions": versions}, None

    def publish(self, state: dict[str, Any], version: int) -> dict[str, Any]:
        """Note that a new version takes the place of `version`."""
        return state | {"before": version}
