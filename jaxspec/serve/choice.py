"""What rounds cost now, and whether the next visit drafts."""

from __future__ import annotations

import numpy as np

from jaxspec.serve.costs import Costs

# Part of a visit's deviation that corrects a cost, and the largest deviation that one visit shows.
_CORRECTS, _DEVIATES = 0.1, 2.0
# Share of the newest drafted round in the averages; visits without drafting before one tries again,
# at first and at most.
_NEW, _FIRST, _LONGEST = 0.05, 8, 256


class LiveCosts:
    """Measured costs, corrected by the times of visits.

    A machine that others use too, or longer sequences, change what a round takes.

    Attributes:
      drafted: float32 [E], seconds of drafted rounds.
      plain: float32 [P], seconds of autoregressive rounds.
    """

    def __init__(self, costs: Costs, edges: tuple[int, ...]):
        self._edges = np.asarray(edges)
        self.drafted = np.asarray(costs.drafted, np.float32)
        self.plain = np.asarray(costs.plain, np.float32)

    def find(self, rows: np.ndarray | int) -> np.ndarray:
        """Return the index of the cost of rounds with so many rows."""
        return np.searchsorted(self._edges, rows)

    def observe(self, drafts: bool, rows: np.ndarray, seconds: float) -> None:
        """Learn from a visit of rounds with `rows` int [rounds] rows that took `seconds`."""
        if not len(rows):
            return
        costs, used = (self.drafted if drafts else self.plain), self.find(rows)
        deviation = np.clip(seconds / costs[used].sum(), 1 / _DEVIATES, _DEVIATES)
        costs[np.unique(used)] *= deviation**_CORRECTS
        # More rows never take less time.
        costs[:] = np.maximum.accumulate(costs)


class DraftChoice:
    """Compares drafted rounds with autoregressive ones, which give each slot one token.

    When drafting does not pay, visits go without it, and now and then one tries again; each failure
    doubles the time to the next.
    """

    def __init__(self, costs: LiveCosts):
        self._costs = costs
        self._tokens = self._plain = 0.0
        self._rest, self._pause = 0, _FIRST

    def wants_draft(self) -> bool:
        """Decide on the next visit."""
        if self._rest > 0:
            self._rest -= 1
            return False
        return True

    def observe(self, emitted: np.ndarray, rows: np.ndarray) -> None:
        """Learn from the drafted rounds of a visit.

        Args:
          emitted: int [B, rounds], tokens of each slot, 0 where it did not decode.
          rows: int [rounds], rows verified.
        """
        costs = self._costs
        for tokens, verified in zip(emitted.T, rows, strict=True):
            live = int((tokens > 0).sum())
            took = costs.drafted[costs.find(verified)]
            self._tokens += _NEW * (float(tokens.sum()) - self._tokens)
            # What autoregressive rounds would have given in the same time.
            self._plain += _NEW * (float(live * took / costs.plain[costs.find(live)]) - self._plain)
        if self._tokens >= self._plain:
            self._pause = _FIRST
        else:
            self._rest, self._pause = self._pause, min(2 * self._pause, _LONGEST)
