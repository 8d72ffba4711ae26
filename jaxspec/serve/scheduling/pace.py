"""How many rounds and how many chunks of prompts fit into a visit."""

from __future__ import annotations

# Weight of the newest visit in what a round or a chunk takes. Part of a visit's time that rounds
# may take while a prompt waits.
_NEW, _PART = 0.2, 2
# Of a visit, by default: a new request and a streamed word wait no longer than a reader notices,
# and what a visit takes beside its rounds, a millisecond on a CPU, is little of it.
VISIT_SECONDS = 0.1


class Pace:
    """The times of rounds and chunks, and how many of them a visit runs.

    Long visits take less of the host's time a round, short ones stream more smoothly and let new
    requests in sooner.
    """

    def __init__(self, seconds: float | None, most: int):
        """Make it.

        Args:
          seconds: that a visit may take; None: visits have as many rounds as they may.
          most: rounds of a visit, at most.
        """
        self._seconds, self._most = seconds, most
        self._round: dict[bool, float] = {}
        self._chunk: float | None = None

    def rounds(self, drafts: bool, hurry: bool) -> int:
        """Choose the rounds of a visit.

        Args:
          drafts: whether they draft.
          hurry: whether a prompt waits to be fed.
        """
        part = _PART if hurry else 1
        if self._seconds is None:
            return max(1, self._most // part)
        if drafts not in self._round:
            return 1
        return self._fit(self._seconds / part, self._round[drafts], self._most)

    def seconds(self, drafts: bool) -> float | None:
        """Return what a round takes; None before any was seen."""
        return self._round.get(drafts)

    def chunks(self) -> int:
        """Choose how many chunks of prompts to feed while other requests decode."""
        if self._seconds is None or self._chunk is None:
            return 1
        return self._fit(self._seconds, self._chunk, 64)

    def observe(self, drafts: bool, rounds: int, seconds: float) -> None:
        """Learn what rounds took."""
        if rounds:
            self._round[drafts] = _mix(self._round.get(drafts), seconds / rounds)

    def observe_feed(self, chunks: int, seconds: float) -> None:
        """Learn what chunks took."""
        if chunks:
            self._chunk = _mix(self._chunk, seconds / chunks)

    @staticmethod
    def _fit(seconds: float, each: float, most: int) -> int:
        return int(min(max(seconds / max(each, 1e-9), 1), most))


def _mix(known: float | None, new: float) -> float:
    return new if known is None else known + _NEW * (new - known)
