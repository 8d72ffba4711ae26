"""What a visit runs: which kind of rounds, how many, and when it ends."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from jaxspec.serve.choice import DraftChoice
from jaxspec.serve.costs import Costs, find_costs
from jaxspec.serve.device import Device
from jaxspec.serve.live_costs import LiveCosts
from jaxspec.serve.pace import Pace
from jaxspec.serve.tasks import Task
from jaxspec.serve.visit import Report

# Of so few slots, one that stays idle to the end of a visit costs more than a further visit does, and
# clients often answer at once. Of many, some text ends in nearly every round.
_FEW = 16


class Planned(NamedTuple):
    """A visit to run.

    Attributes:
      rounds: of the visit, at most.
      leaves: whether it ends with the first text that ends.
      drafts: whether its rounds draft.
      follows: whether a drafter reads any slot of it.
      load: slots that decode.
    """

    rounds: int
    leaves: bool
    drafts: bool
    follows: bool
    load: int


class Schedule:
    """Plans visits, and learns from them what rounds cost and at which loads drafting pays.

    A load is a number of slots that decode. Those that plain rounds verify with as many rows are one.
    """

    def __init__(self, device: Device, pace: Pace, costs: Costs | None):
        self._device, self._pace, self._costs = device, pace, costs
        self._live: LiveCosts | None = None
        self._choices: list[DraftChoice] = []  # of each load, if the rule weighs them

    @property
    def weighs(self) -> bool:
        """Whether the engine's rule weighs what rounds cost, and so may let the drafter rest."""
        device = self._device
        return device.plan.drafter is not None and device.rules.rule in ("global", "equal")

    def warm_up(self) -> None:
        """Measure what rounds cost, if the rule asks for it and nobody has said."""
        if not self.weighs:
            return
        costs = find_costs(self._device) if self._costs is None else self._costs
        rules = self._device.rules
        self._live = LiveCosts(costs, rules.edges, rules.plain_edges(self._device.slots))
        self._device.drafted = self._live.drafted
        self._choices = [DraftChoice(self._live) for _ in self._live.plain]

    def choose_reader(self, task: Task, load: int) -> int:
        """Choose the drafter that reads a request from its start on; 0: none.

        It cannot begin later: it would have to read features that the target does not keep.

        Args:
          load: slots that will decode, this one among them, as far as is known.
        """
        choice = self._find_choice(load)
        if choice is not None and not (_wants_drafts(task) and choice.wants_followers()):
            return 0
        return task.accepted.reader if self._device.plan.drafter is not None else 0

    def plan(self, tasks: dict[int, Task], waiting: int) -> Planned:
        """Plan a visit.

        Args:
          tasks: by slot; some of them decode.
          waiting: requests without a slot.
        """
        running = [task for task in tasks.values() if task.decodes]
        traced = any(task.accepted.request.trace for task in running)
        drafts, follows = self._drafts(running), any(task.reader for task in running)
        hurry = len(running) < self._device.slots
        rounds = 1 if traced else self._pace.rounds(drafts, hurry)
        choice = self._find_choice(len(running))
        most = None if choice is None else choice.limit_rounds(drafts)
        rounds = rounds if most is None else min(rounds, most)
        return Planned(rounds, self._leaves_early(waiting), drafts, follows, len(running))

    def observe(self, planned: Planned, report: Report, seconds: float | None, busy: float) -> bool:
        """Learn from a visit.

        Args:
          seconds: what it took; None if the device did other work too.
          busy: what it took with all work since the one before.

        Returns:
          Whether it showed that drafting does not pay, so that drafters need not read on.
        """
        if seconds is not None:
            self._pace.observe(planned.drafts, len(report.rows), seconds)
        if self._live is not None:
            self._live.observe(planned.drafts, report.rows, seconds)
        choice = self._find_choice(planned.load)
        if choice is None:
            return False
        return choice.observe(
            planned.drafts, report.emitted, np.asarray(report.rows), seconds, busy
        )

    def _find_choice(self, load: int) -> DraftChoice | None:
        """Find the choice of a load; None if the rule leaves nothing to choose."""
        if self._live is None:
            return None
        return self._choices[int(self._live.find(False, load))]

    def _drafts(self, running: list[Task]) -> bool:
        """Decide whether rounds draft. They do for all who want it, or for nobody."""
        wanting = [task for task in running if _wants_drafts(task)]
        if not wanting or not all(task.reader for task in wanting):
            return False
        choice = self._find_choice(len(running))
        return choice is None or choice.wants_drafts()

    def _leaves_early(self, waiting: int) -> bool:
        return self._device.slots <= _FEW or waiting > 0


def _wants_drafts(task: Task) -> bool:
    return task.accepted.settings["deepest"] > 0
