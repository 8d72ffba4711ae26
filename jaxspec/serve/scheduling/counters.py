"""Figures of a running engine."""

from __future__ import annotations

import collections
import dataclasses
import threading
from typing import Any

import numpy as np

from jaxspec.core.runtime.compilations import compilations
from jaxspec.serve.on_device.visit import Report
from jaxspec.serve.requests import Update


@dataclasses.dataclass
class Counters:
    """Sums since the engine was made.

    Attributes:
      accepted: accepted[i] drafts of which at least i + 1 tokens were accepted.
      slot_rounds: rounds, counted in each slot.
      drafts, draft_tokens: those of them that verified a draft, and the tokens of drafts.
      rows_per_round: {rows verified: rounds}.
      finished: {reason: requests}.
    """

    slots: int
    depth: int
    submitted: int = 0
    refused: int = 0
    prompt_tokens: int = 0
    reused_tokens: int = 0
    tokens: int = 0
    visits: int = 0
    rounds: int = 0
    slot_rounds: int = 0
    drafts: int = 0
    draft_tokens: int = 0
    drafted_rounds: int = 0
    visit_seconds: float = 0.0
    queue_seconds: float = 0.0

    def __post_init__(self) -> None:
        self.accepted = np.zeros(self.depth, np.int64)
        self.rows_per_round: collections.Counter[int] = collections.Counter()
        self.finished: collections.Counter[str] = collections.Counter()
        self._compiled: int | None = None
        self._submitting = threading.Lock()

    def warmed_up(self) -> None:
        """Count compilations from now on."""
        self._compiled = compilations()

    def observe_submit(self, queued: bool) -> None:
        """Count a request that was queued or refused. Any thread may call it."""
        with self._submitting:
            self.submitted += queued
            self.refused += not queued

    def observe_visit(self, report: Report, drafts: bool, seconds: float) -> None:
        """Add what a visit did."""
        self.visits += 1
        self.visit_seconds += seconds
        self.rounds += len(report.rows)
        self.drafted_rounds += len(report.rows) if drafts else 0
        self.slot_rounds += int((report.emitted > 0).sum())
        self.drafts += int((report.verified > 0).sum())
        self.draft_tokens += int(report.verified.sum())
        self.rows_per_round.update(report.rows.tolist())
        if self.depth:
            at_least = report.drafts[..., None] > np.arange(self.depth)
            self.accepted += at_least.sum((0, 1))

    def observe_update(self, update: Update) -> None:
        """Add what a request got."""
        self.tokens += len(update.tokens)
        if update.finish is not None:
            self.finished[update.finish] += 1

    def as_dict(self, running: int, waiting: int) -> dict[str, Any]:
        """Return all figures as JSON-able values."""
        sums = dataclasses.asdict(self)
        after = None if self._compiled is None else compilations() - self._compiled
        return sums | {
            "running": running,
            "waiting": waiting,
            "accepted": self.accepted.tolist(),
            "rows_per_round": dict(sorted(self.rows_per_round.items())),
            "finished": dict(self.finished),
            "compiles_after_warm_up": after,
        }
