"""What rounds cost now: measured once, then corrected by the times of visits."""

from __future__ import annotations

import numpy as np

from jaxspec.tuner.serving.costs import Costs

# Visits of each kind that show what costs are of which nobody has measured any.
_FIRST = 3
# Part of a visit's deviation that corrects a cost, in logarithms, if the visit before it was of the
# same kind; the part grows with the visits between them, up to this much. The largest deviation
# that one visit shows.
_CORRECTS, _CORRECTS_MOST, _DEVIATES = 0.1, 0.5, 2.0


class LiveCosts:
    """Measured costs, corrected by the times of visits.

    A machine that others use too, or longer sequences, change what a round takes.

    Attributes:
      drafted: float32 [E], seconds of drafted rounds.
      plain: float32 [P], seconds of autoregressive rounds.
      visit: seconds of a visit beside its rounds.
    """

    def __init__(
        self,
        costs: Costs,
        edges: tuple[int, ...],
        plain_edges: tuple[int, ...],
        guessed: bool = False,
    ):
        """Make them.

        Args:
          costs: of drafted rounds of the numbers of rows `edges`, and of plain ones of
            `plain_edges`.
          guessed: whether nobody has measured them, so that the first visits say more than they do.
        """
        # By kind: how much longer than guessed the first visits took.
        self._guessed: dict[bool, list[float]] = {True: [], False: []} if guessed else {}
        self._edges = {True: np.asarray(edges), False: np.asarray(plain_edges)}
        self.drafted = np.asarray(costs.drafted, np.float32)
        self.plain = np.asarray(costs.plain, np.float32)
        self._visits, self.visit = 0, costs.visit
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
        took = max(seconds - self.visit, 0.0)
        if drafts in self._guessed:
            self._guessed[drafts].append(took / costs[used].sum())
            if len(self._guessed[drafts]) == _FIRST:  # one of them may have stalled
                costs *= np.median(self._guessed.pop(drafts))
            return
        deviation = np.clip(took / costs[used].sum(), 1 / _DEVIATES, _DEVIATES)
        part = min(1 - (1 - _CORRECTS) ** missed, _CORRECTS_MOST)
        for edge in np.unique(used):
            costs[edge] *= deviation**part
            # More rows never take less time: what was just seen corrects what was not.
            costs[:edge] = np.minimum(costs[:edge], costs[edge])
            costs[edge:] = np.maximum(costs[edge:], costs[edge])
