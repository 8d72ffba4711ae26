"""Whether rounds draft: what drafting gives is weighed against what it takes, and tried again."""

from __future__ import annotations

import numpy as np

from jaxspec.tuner.serving.live_costs import LiveCosts

# Share of the newest drafted round in the averages. Drafted rounds of a trial that is not behind,
# and plain ones of a trial, which show what they take.
_NEW, _KNOWN, _PLAIN = 0.05, 8, 2
# Drafting ends when it is behind plain rounds by the time of so many drafted ones. Rounds and texts
# vary much in what they give: fewer would end what pays, often at one hard text. What it is ahead
# counts up to as many, so that a change is noticed. A visit of a trial counts at most so many times
# what its rounds cost: some stall, whatever they do.
_BEHIND, _STALLS = 12.0, 2.0
# Trials may cost this share of the time, if they then come after so many rounds. Rounds between two
# of them, at least: at first, and after many that changed nothing.
_SHARE, _FIRST, _LONGEST = 0.02, 64, 2048
# Tokens after which what was seen while the drafter rests counts a third.
_REMEMBERED = 512


class DraftChoice:
    """Compares drafted rounds with autoregressive ones, which give each slot one token.

    It is of one load: so many slots decode. Rounds are of the kind that pays more. Now and then a
    few of the other kind are tried, because its costs and what it accepts may have changed.
    Drafting goes on until it is clearly behind (a cumulative sum test, Page 1954). The more a trial
    lost, the later is the next one, and each one that changes nothing doubles the least time to the
    next. While drafting does not pay, the drafter rests: it reads nothing of new requests, and a
    trial begins with requests that it reads again.
    """

    def __init__(self, costs: LiveCosts):
        self._costs = costs
        # Tokens of a drafted round, and those of plain ones in the same time: averages.
        self._tokens = self._plain = 0.0
        self._pays = False
        # Seconds that drafting is behind plain rounds, negative if it is ahead.
        self._behind = 0.0
        # Rounds and seconds of the kind that pays since the last trial, and how many must pass
        # before the next one. Nothing is known yet, so a trial is due.
        self._rounds, self._waited = 0, 0.0
        self._between, self._pause = 0, 0.0
        # Rounds of the trial, and the seconds that they lost.
        self._tried, self._lost = 0, 0.0
        # While the drafter rests, tokens and seconds with those of feeding prompts: of the last
        # while, and since a trial is due. So what reading prompts for a trial takes counts as its
        # loss.
        self._rested = self._due = np.zeros(2)

    def wants_followers(self) -> bool:
        """Decide whether the drafter reads a new request."""
        return self._pays or self._tries

    def wants_drafts(self) -> bool:
        """Decide whether the next visit drafts, if it can."""
        return self._pays != self._tries

    def limit_rounds(self, drafts: bool) -> int | None:
        """Return the most rounds of the next visit, if it drafts or not; None: any number.

        A trial of drafting begins with a visit of one round, in which the drafter also reads what
        it has not read yet. Those that follow show what rounds take.
        """
        return self._tried + 1 if drafts and not self._pays else None

    @property
    def _tries(self) -> bool:
        """Whether it is time for a trial."""
        waited = self._waited >= self._pause or self._rounds >= _LONGEST
        return self._rounds >= self._between and waited

    def observe(
        self,
        drafts: bool,
        emitted: np.ndarray,
        rows: np.ndarray,
        seconds: float | None = None,
        busy: float | None = None,
    ) -> bool:
        """Learn from a visit.

        Args:
          drafts: whether its rounds drafted.
          emitted: int [B, rounds], tokens of each slot, 0 where it did not decode.
          rows: int [rounds], rows verified.
          seconds: what the visit took, reading what waited for the drafter included, by which
            trials are judged; None: what its rounds cost.
          busy: what it and the feeding of prompts before it took; None: unknown.

        Returns:
          Whether the drafter rests from now on.
        """
        if not self._pays and busy is not None:
            self._observe_resting(int(emitted.sum()), busy)
        took, lost = self._weigh_drafted(emitted, rows) if drafts else self._weigh_plain(emitted)
        if drafts == self._pays:
            self._rounds += len(rows)
            self._waited += took
        elif self._tries:  # and not because some request cannot draft
            if seconds is not None:
                more = min(seconds - self._costs.visit, _STALLS * took) - took
                took, lost = took + more, lost + more
            self._tried += len(rows)
            self._lost += lost
        if drafts and took > 0:
            enough = _BEHIND * took / len(rows)
            self._behind = max(self._behind + lost, -enough)
            if self._behind >= enough:
                self._restart(pays=False)
                return True
        self._end_trial()
        return False

    def _observe_resting(self, tokens: int, busy: float) -> None:
        """Learn what tokens take while the drafter rests, or while a trial is due."""
        new = np.asarray([tokens, busy])
        if self._tries:
            self._due = self._due + new
        else:
            self._rested = self._rested * np.exp(-tokens / _REMEMBERED) + new

    def _end_trial(self) -> None:
        """End a trial that has shown enough: of plain rounds, or of drafting that is not behind."""
        if self._tried >= (_PLAIN if self._pays else _KNOWN) and (self._pays or self._behind <= 0):
            self._restart(pays=True)

    def _restart(self, pays: bool) -> None:
        """Wait for the next trial."""
        changed = pays != self._pays or not self._between
        self._between = _FIRST if changed else min(2 * self._between, _LONGEST)
        (tokens, seconds), (due_tokens, due) = self._rested, self._due
        whole = due - due_tokens * seconds / tokens if tokens else 0.0
        self._pause = max(self._lost, whole, 0.0) / _SHARE
        self._due = np.zeros(2)
        self._pays, self._behind = pays, self._behind if pays else 0.0
        self._rounds, self._waited = 0, 0.0
        self._tried, self._lost = 0, 0.0

    def _weigh_drafted(self, emitted: np.ndarray, rows: np.ndarray) -> tuple[float, float]:
        """Average what drafted rounds gave, and what others would have given in the same time.

        Returns:
          (seconds that they took; those of them that plain rounds would have spared).
        """
        costs, total, lost = self._costs, 0.0, 0.0
        for tokens, verified in zip(emitted.T, rows, strict=True):
            live, made = int((tokens > 0).sum()), float(tokens.sum())
            if not live:  # all slots of the round broke
                continue
            took = float(costs.drafted[costs.find(True, verified)])
            plain = live * took / float(costs.plain[costs.find(False, live)])
            self._tokens += _NEW * (made - self._tokens)
            self._plain += _NEW * (plain - self._plain)
            total += took
            lost += took * (1 - made / plain)
        return total, lost

    def _weigh_plain(self, emitted: np.ndarray) -> tuple[float, float]:
        """Return the seconds that plain rounds took, and those that drafted ones would have spared."""
        live = (emitted > 0).sum(0)
        took = float(self._costs.plain[self._costs.find(False, live)].sum())
        return took, took * (self._tokens / self._plain - 1) if self._plain else 0.0
