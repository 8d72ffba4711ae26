"""Windows of queries, compared domain by domain, to see that an update made decoding worse.

The pace of a query is the logarithm of its tokens per round. Windows are compared only over domains
that both have, so that a change of the stream's mix is no change of the drafter.
"""

from __future__ import annotations

import math
from typing import Any

from jaxspec.adapt.deciders.base import Query

# {domain: [number, sum, sum of squares] of the paces}
Window = dict[str, list[float]]


def add_query(window: Window, query: Query) -> Window:
    """Return the window with one more query."""
    pace = math.log(max(query.pace, 1e-9))
    number, total, squares = window.get(query.domain, [0, 0.0, 0.0])
    return window | {query.domain: [number + 1, total + pace, squares + pace**2]}


def join_windows(windows: list[Window]) -> Window:
    """Return one window with the queries of several."""
    joined: Window = {}
    for window in windows:
        for domain, sums in window.items():
            known = joined.get(domain, [0, 0.0, 0.0])
            joined[domain] = [a + b for a, b in zip(known, sums, strict=True)]
    return joined


def compare_windows(before: Window, after: Window) -> tuple[float, float] | None:
    """Return the change of the mean pace and its standard error; None without a common domain.

    Domains are weighted by their number of queries in `after`. The variance is that within domains,
    pooled over both windows.
    """
    common = [
        domain for domain in after if before.get(domain, [0])[0] >= 2 and after[domain][0] >= 1
    ]
    total = sum(after[domain][0] for domain in common)
    spread, degrees = 0.0, 0
    for window in (before, after):
        for domain in common:
            number, sums, squares = window[domain]
            spread += max(squares - sums**2 / number, 0.0)
            degrees += int(number) - 1
    if not common or degrees < 2:
        return None
    change, error = 0.0, 0.0
    for domain in common:
        (n, a, _), (m, b, _) = before[domain], after[domain]
        share = m / total
        change += share * (b / m - a / n)
        error += share**2 * (1 / n + 1 / m)
    return change, math.sqrt(error * spread / degrees)


class Watch:
    """The functions of the watch over windows; its state is plain data.

    A window is worse if its pace is below that of the latest good windows by more than `least` and
    by more than `errors` standard errors. The version to go back to is the one that decoded two
    windows ago, so the damage ends within two windows.
    """

    def __init__(self, queries: int, errors: float, least: float, kept: int = 4):
        self.queries, self.errors, self.least, self.kept = queries, errors, least, kept

    def init(self, version: int = 0) -> dict[str, Any]:
        """Return the state before the first query, which `version` decodes."""
        return {"count": 0, "window": {}, "good": [], "versions": [version, version]}

    def add(
        self, state: dict[str, Any], query: Query, version: int
    ) -> tuple[dict[str, Any], int | None]:
        """Add a query that `version` decoded.

        Returns:
          The new state, and the version to go back to or None.
        """
        state = state | {"window": add_query(state["window"], query), "count": state["count"] + 1}
        if state["count"] < self.queries:
            return state, None
        window, good = state["window"], state["good"]
        found = compare_windows(join_windows(good), window)
        older = state["versions"][0]
        worse = found is not None and -found[0] > max(self.errors * found[1], self.least)
        if worse and older != version:
            return self.init(older) | {"good": good}, older
        versions = [state["versions"][1], version]
        return self.init() | {"good": [*good, window][-self.kept :], "versions": versions}, None
