"""What rounds cost now, and whether the next visit drafts."""

from __future__ import annotations

import numpy as np

from jaxspec.serve.costs import Costs

# Part of a visit's deviation that corrects a cost, in logarithms, if the visit before it was of the
# same kind; the part grows with the visits between them, up to this much. The largest deviation that
# one visit shows.
_CORRECTS, _CORRECTS_MOST, _DEVIATES = 0.1, 0.5, 2.0
# Share of the newest drafted round in the averages. Visits of the better kind before the other is
# tried again, at first and at most, and visits of a trial.
_NEW, _FIRST, _LONGEST, _TRIAL = 0.05, 8, 256, 2


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
        self._visits = 0
        self._seen = {True: 0, False: 0}  # the last visit of each kind whose time was learnt
        self._drafted_last = True

    def find(self, rows: np.ndarray | int) -> np.ndarray:
        """Return the index of the cost of rounds with so many rows."""
        return np.searchsorted(self._edges, rows)

    def observe(self, drafts: bool, rows: np.ndarray, seconds: float | None) -> None:
        """Learn from a visit of rounds with `rows` int [rounds] rows.

        Args:
          drafts: whether its rounds drafted.
          seconds: what it took; None if the device did other work too.
        """
        if not len(rows):
            return
        self._visits += 1
        # In the first visit that drafts again, the drafter also absorbs what plain rounds left.
        absorbs, self._drafted_last = drafts and not self._drafted_last, drafts
        if seconds is None or absorbs:
            return
        missed, self._seen[drafts] = self._visits - self._seen[drafts], self._visits
        costs, used = (self.drafted if drafts else self.plain), self.find(rows)
        deviation = np.clip(seconds / costs[used].sum(), 1 / _DEVIATES, _DEVIATES)
        part = min(1 - (1 - _CORRECTS) ** missed, _CORRECTS_MOST)
        for edge in np.unique(used):
            costs[edge] *= deviation**part
            # More rows never take less time: what was just seen corrects what was not.
            costs[:edge] = np.minimum(costs[:edge], costs[edge])
            costs[edge:] = np.maximum(costs[edge:], costs[edge])


class DraftChoice:
    """Compares drafted rounds with autoregressive ones, which give each slot one token.

    Visits are of the kind that pays more. Now and then a few of the other kind are tried, because
    its costs and what it accepts may have changed; each trial that changes nothing doubles the time
    to the next.
    """

    def __init__(self, costs: LiveCosts):
        self._costs = costs
        self._tokens = self._plain = 0.0
        self._drafts, self._visits, self._pause = True, 0, _FIRST

    def wants_draft(self) -> bool:
        """Decide on the next visit."""
        visit, self._visits = self._visits, self._visits + 1
        if visit < self._pause:
            return self._drafts
        if self._visits == self._pause + _TRIAL:
            self._visits, self._pause = 0, min(2 * self._pause, _LONGEST)
        return not self._drafts

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
        pays = self._tokens >= self._plain
        if pays != self._drafts:
            self._drafts, self._visits, self._pause = pays, 0, _FIRST
