"""What rounds cost now, and whether the next visit drafts."""

from __future__ import annotations

import numpy as np

from jaxspec.serve.costs import Costs

# Part of a visit's deviation that corrects a cost, in logarithms, if the visit before it was of the
# same kind; the part grows with the visits between them, up to this much. The largest deviation that
# one visit shows.
_CORRECTS, _CORRECTS_MOST, _DEVIATES = 0.1, 0.5, 2.0
# Share of the newest drafted round in the averages. Rounds of the better kind before the other is
# tried again, at first and at most. Rounds of a trial: drafted ones show what they give and what they
# take, plain ones what they take.
_NEW, _FIRST, _LONGEST, _TRIAL = 0.05, 64, 2048, {True: 8, False: 2}


class LiveCosts:
    """Measured costs, corrected by the times of visits.

    A machine that others use too, or longer sequences, change what a round takes.

    Attributes:
      drafted: float32 [E], seconds of drafted rounds.
      plain: float32 [P], seconds of autoregressive rounds.
    """

    def __init__(self, costs: Costs, edges: tuple[int, ...], plain_edges: tuple[int, ...]):
        self._edges = {True: np.asarray(edges), False: np.asarray(plain_edges)}
        self.drafted = np.asarray(costs.drafted, np.float32)
        self.plain = np.asarray(costs.plain, np.float32)
        self._visits, self._visit = 0, costs.visit
        self._seen = {True: 0, False: 0}  # the last visit of each kind whose time was learnt
        self._drafted_last = True

    def find(self, drafts: bool, rows: np.ndarray | int) -> np.ndarray:
        """Return the index of the cost of rounds with so many rows, which draft or not."""
        return np.searchsorted(self._edges[drafts], rows)

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
        costs, used = (self.drafted if drafts else self.plain), self.find(drafts, rows)
        took = max(seconds - self._visit, 0.0)
        deviation = np.clip(took / costs[used].sum(), 1 / _DEVIATES, _DEVIATES)
        part = min(1 - (1 - _CORRECTS) ** missed, _CORRECTS_MOST)
        for edge in np.unique(used):
            costs[edge] *= deviation**part
            # More rows never take less time: what was just seen corrects what was not.
            costs[:edge] = np.minimum(costs[:edge], costs[edge])
            costs[edge:] = np.maximum(costs[edge:], costs[edge])


class DraftChoice:
    """Compares drafted rounds with autoregressive ones, which give each slot one token.

    Rounds are of the kind that pays more. Now and then a few of the other kind are tried, because
    its costs and what it accepts may have changed; each trial that changes nothing doubles the time
    to the next. While drafting does not pay, the drafter rests: it reads nothing of new requests,
    and a trial begins with requests that it reads again.
    """

    def __init__(self, costs: LiveCosts):
        self._costs = costs
        self._tokens = self._plain = 0.0
        self._pays, self._pause = True, _FIRST
        # Rounds of the better kind, of the other one in a trial, and drafted ones that were compared.
        self._rounds = self._tried = self._compared = 0

    def wants_followers(self) -> bool:
        """Decide whether the drafter reads a new request."""
        return self._pays or self._tries

    def wants_drafts(self) -> bool:
        """Decide whether the next visit drafts, if it can."""
        return self._pays != self._tries

    @property
    def _tries(self) -> bool:
        """Whether it is time for a trial."""
        return self._rounds >= self._pause

    def observe(self, drafts: bool, emitted: np.ndarray, rows: np.ndarray) -> None:
        """Learn from a visit.

        Args:
          drafts: whether its rounds drafted.
          emitted: int [B, rounds], tokens of each slot, 0 where it did not decode.
          rows: int [rounds], rows verified.
        """
        if drafts:
            self._compare(emitted, rows)
        better, pays = drafts == self._pays, self._tokens >= self._plain
        if pays != self._pays and self._compared >= _TRIAL[True]:
            self._pays = pays
            self._restart(_FIRST)
        elif better:
            self._rounds += len(rows)
        elif self._tries:  # and not because some request cannot draft
            self._tried += len(rows)
        if self._tried >= _TRIAL[not self._pays]:
            self._restart(min(2 * self._pause, _LONGEST))

    def _restart(self, pause: int) -> None:
        """Count the rounds to the next trial from 0."""
        self._rounds = self._tried = self._compared = 0
        self._pause = pause

    def _compare(self, emitted: np.ndarray, rows: np.ndarray) -> None:
        """Average what drafted rounds gave, and what others would have given in the same time."""
        costs = self._costs
        self._compared += len(rows)
        for tokens, verified in zip(emitted.T, rows, strict=True):
            live = int((tokens > 0).sum())
            took = costs.drafted[costs.find(True, verified)]
            self._tokens += _NEW * (float(tokens.sum()) - self._tokens)
            plain = costs.plain[costs.find(False, live)]
            self._plain += _NEW * (float(live * took / plain) - self._plain)
