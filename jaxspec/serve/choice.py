"""Whether the next visit drafts: by the tokens per second that drafting has given lately."""

from __future__ import annotations

import numpy as np

from jaxspec.serve.costs import Costs

# Share of the newest drafted round in the averages; visits without drafting before one tries again,
# at first and at most.
_NEW, _FIRST, _LONGEST = 0.05, 8, 256


class DraftChoice:
    """Compares drafted rounds with autoregressive ones, whose cost and yield are known.

    Drafting pays while its tokens per second are more than one token per slot and autoregressive
    round. When it does not pay, visits go without it, and now and then one tries again; each failure
    doubles the time to the next.
    """

    def __init__(self, costs: Costs, edges: tuple[int, ...]):
        self._costs, self._edges = costs, np.asarray(edges)
        self._tokens = self._seconds = self._plain = 0.0
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
        for tokens, verified in zip(emitted.T, rows, strict=True):
            live = int((tokens > 0).sum())
            edge = np.searchsorted(self._edges, verified)
            plain = self._costs.plain[np.searchsorted(self._edges, live)]
            self._tokens += _NEW * (tokens.sum() - self._tokens)
            self._seconds += _NEW * (self._costs.drafted[edge] - self._seconds)
            self._plain += _NEW * (live / plain * self._costs.drafted[edge] - self._plain)
        if self._tokens >= self._plain:
            self._pause = _FIRST
        else:
            self._rest, self._pause = self._pause, min(2 * self._pause, _LONGEST)
