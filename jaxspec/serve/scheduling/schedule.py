"""What a visit runs: which kind of rounds, how many, and when it ends."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from jaxspec.core.sampling.settings import MIN_TEMPERATURE
from jaxspec.serve.on_device.programs import Variant
from jaxspec.serve.on_device.share_rows import WEIGHING
from jaxspec.serve.on_device.visit import Report
from jaxspec.serve.scheduling.device import Device
from jaxspec.serve.scheduling.pace import Pace
from jaxspec.serve.scheduling.tasks import Task
from jaxspec.serve.scheduling.warming import Compiler, cover
from jaxspec.tuner.serving.costs import Costs, find_costs, guess_costs, read_costs
from jaxspec.tuner.serving.draft_choice import DraftChoice
from jaxspec.tuner.serving.live_costs import LiveCosts
from jaxspec.tuner.tuner import Tuner

# Of so few slots, one that stays idle to the end of a visit costs more than a further visit does,
# and clients often answer at once. Of many, some text ends in nearly every round.
_FEW = 16
# So many requests decode one after the other by the program for one slot, as fast as all by plain
# rounds, until the program for all of them is compiled.
_ALONE = 2
# Drafted rounds after which what they gave counts a third.
_REMEMBERED = 256


class Planned(NamedTuple):
    """A visit to run.

    Attributes:
      slots: that decode in it.
      first, part: the first slot of the visit and how many there are, see `Device.parts`.
      rounds: of the visit, at most.
      leaves: whether it ends with the first text that ends.
      drafts: whether its rounds draft.
      follows: whether a drafter reads any slot of it.
      kinds: of its slots: (number of the drafter that reads one, whether it decodes greedily).
      lets_go: whether the drafters stop reading these slots before it.
    """

    slots: tuple[int, ...]
    first: int
    part: int
    rounds: int
    leaves: bool
    drafts: bool
    follows: bool
    kinds: set[tuple[int, bool]]
    lets_go: bool = False

    @property
    def load(self) -> int:
        """Slots that decode."""
        return len(self.slots)


class Schedule:
    """Plans visits, and learns from them what rounds cost and at which loads drafting pays.

    A load is a number of slots that decode. Those that plain rounds verify with as many rows are
    one.
    """

    def __init__(
        self,
        device: Device,
        compiler: Compiler,
        pace: Pace,
        costs: Costs | None,
        tries: bool,
        tuner: Tuner,
    ):
        """Make it.

        Args:
          costs: of all slots' rounds, if they are known.
          tries: whether requests that name no drafter get the fastest one.
          tuner: keeps costs and the speeds of drafters.
        """
        # Whether no clock may decide which rows a round verifies, see `Tuner`.
        self._tuner, self._steady = tuner, tuner.is_steady(device.params)
        self._device, self._compiler, self._pace = device, compiler, pace
        self._costs, self._tries = costs, tries
        self._live: dict[int, LiveCosts] = {}  # by part
        # Tokens of drafted rounds lately, and slots that decoded in them.
        self._made = np.zeros(2)
        # By part and load, if the rule weighs them.
        self._choices: dict[tuple[int, int], DraftChoice] = {}

    @property
    def weighs(self) -> bool:
        """Whether the engine's rule weighs what rounds cost, and so may let the drafter rest."""
        device = self._device
        return device.plan.drafter is not None and device.rules.rule in WEIGHING

    @property
    def knows(self) -> bool:
        """Whether it knows what rounds cost, or need not. Until then, nothing drafts."""
        return not self.weighs or bool(self._live)

    def learn_costs(self, measure: bool) -> None:
        """Find what rounds cost: given, kept from an earlier start, or else measured now.

        Args:
          measure: whether to measure; all slots must be free then. Otherwise unknown costs stay so.
        """
        if self.knows:
            return
        store = self._tuner.store
        costs = read_costs(self._device, store) if self._costs is None else self._costs
        if costs is None and measure and not store.frozen:
            costs = find_costs(self._device, store, self._steady)
        if costs is not None:
            self._set_costs(costs)
        elif store.frozen:
            self.guess()

    def guess(self) -> None:
        """Take what plain rounds took as the measure of all rounds, which visits then correct.

        Steady rounds have a measure that no clock gives: only ratios count.
        """
        plain = 1.0 if self._steady else self._pace.seconds(drafts=False)
        if self.knows or plain is None:
            return
        part = self._device.parts[0]
        rules = self._device.rules_of(part)
        drafted = tuple(plain * (1.5 + 0.05 * edge) for edge in range(len(rules.edges)))
        guessed = Costs(drafted, (plain,) * len(rules.plain_edges(part)))
        self._set_costs(guessed, guessed=True)

    def _set_costs(self, costs: Costs, guessed: bool = False) -> None:
        """Begin to learn, from the costs of rounds of the smallest part."""
        device = self._device
        smallest, rows = device.parts[0], device.rules_of(device.parts[0]).edges
        for part in device.parts:
            rules, own = device.rules_of(part), costs
            if part > smallest:
                own = guess_costs(costs, rows, part, rules)
            edges = rules.edges, rules.plain_edges(part)
            live = LiveCosts(own, *edges, guessed=guessed or part > smallest)
            self._live[part], device.drafted[part] = live, live.drafted
            for load in range(len(live.plain)):
                self._choices[part, load] = DraftChoice(live)

    def choose_reader(self, task: Task, load: int) -> int:
        """Choose the drafter that reads a request from its start on; 0: none.

        It cannot begin later: it would have to read features that the target does not keep.

        Args:
          load: slots that will decode, this one among them, as far as is known.
        """
        if self.weighs:
            choice = self._find_choice(load)
            if choice is None or not (_wants_drafts(task) and choice.wants_followers()):
                return 0
            if not self._may_pay(load):
                return 0
        reader = task.accepted.reader if self._device.plan.drafter is not None else 0
        if not reader:
            return 0
        part = self._part_of(load)
        if self._tries and task.accepted.request.drafter is None:
            params, names = self._device.params, self._device.drafters
            trials, greedy = self._tuner.drafters, _is_greedy(task)
            reader = 1 + names.index(trials.choose(params, part, greedy, names, self._steady))
        needed = Variant("feed", reader), Variant("visit", 1, part)
        self._compiler.want(needed)
        return reader if all(map(self._compiler.has, needed)) or not self.weighs else 0

    def _may_pay(self, load: int) -> bool:
        """Whether drafting would pay at a load, if it gave as much as it lately gave anywhere.

        Rounds of the smallest part need not prove that: all that is known comes from them.
        """
        part = self._part_of(load)
        if part == self._device.parts[0]:
            return True
        live, (tokens, rounds) = self._live[part], self._made
        plain = live.plain[live.find(False, load)]
        return bool(tokens * plain > rounds * live.drafted[0])

    def can_feed(self, task: Task) -> bool:
        """Whether the program that reads a prompt is compiled."""
        if task.accepted.request.prompt_logprobs is None:
            return True
        # Without a drafter, all programs are those of the first reader.
        needed = Variant("score", task.reader or int(not self.weighs))
        self._compiler.want([needed])
        return self._compiler.has(needed)

    def plan(self, tasks: dict[int, Task], waiting: int) -> list[Planned]:
        """Plan visits, one after the other, in which every task that decodes has its turn.

        Args:
          tasks: by slot; some of them decode.
          waiting: requests without a slot.
        """
        running = {slot: task for slot, task in tasks.items() if task.decodes}
        follows = any(task.reader for task in running.values())
        part = self._find_part(list(running), follows)
        lets_go = False
        if part is None and self.weighs and len(running) > _ALONE:
            part = self._find_part(list(running), follows=False)
            lets_go, follows = part is not None, follows and part is None
        if part is not None:
            groups = [tuple(running)]
        else:
            # Until the program for all of them is compiled, each decodes by that for one.
            part = self._device.parts[0]
            groups = [(slot,) for slot in running]
        planned = []
        for slots in groups:
            own = {slot: running[slot] for slot in slots}
            feeds = len(running) < len(tasks)
            one = self._plan_visit(own, part, follows, waiting, feeds, len(groups))
            planned.append(one._replace(lets_go=lets_go))
        return planned

    def _plan_visit(
        self,
        running: dict[int, Task],
        part: int,
        follows: bool,
        waiting: int,
        feeds: bool,
        turns: int,
    ) -> Planned:
        """Plan a visit of some slots, of which `turns` come one after the other.

        Args:
          feeds: whether some prompt is still read.
        """
        traced = any(task.accepted.request.trace for task in running.values())
        drafts = follows and self._drafts(list(running.values()), part)
        rounds = 1 if traced else max(1, self._pace.rounds(drafts, feeds) // turns)
        choice = self._find_choice(len(running), part)
        most = None if choice is None else choice.limit_rounds(drafts)
        rounds = rounds if most is None else min(rounds, most)
        first = min(running) // part * part
        leaves = self._leaves_early(waiting)
        kinds = {(task.reader, _is_greedy(task)) for task in running.values()}
        return Planned(tuple(running), first, part, rounds, leaves, drafts, follows, kinds)

    def _find_part(self, slots: list[int], follows: bool) -> int | None:
        """Find the smallest compiled part for some slots; None: there is none yet."""
        device, has = self._device, self._compiler.has
        least = cover(slots, device.parts)
        for part in device.parts:
            fits = part >= least
            if fits and (has(Variant("visit", 1, part)) or self._has_plain(part, follows)):
                return part
        if follows:
            self._compiler.want([Variant("visit", 1, least)])
        return None

    def _has_plain(self, part: int, follows: bool) -> bool:
        return not follows and self._compiler.has(Variant("visit", 0, part))

    def observe(
        self, planned: Planned, report: Report, seconds: float | None, busy: float | None
    ) -> bool:
        """Learn from a visit.

        Args:
          seconds: what it took; None if the device did other work too.
          busy: what it took with all work since the one before.

        Returns:
          Whether it showed that drafting does not pay, so that drafters need not read on.
        """
        if seconds is not None:
            self._pace.observe(planned.drafts, len(report.rows), seconds)
        if self._compiler.list_missing():  # what compiles takes the processor from rounds
            seconds = None
        if self._steady:
            seconds = busy = None
        if planned.drafts:
            made = [report.emitted.sum(), (report.emitted > 0).sum()]
            self._made = self._made * np.exp(-len(report.rows) / _REMEMBERED) + made
        if self._live:
            self._live[planned.part].observe(planned.drafts, report.rows, seconds)
        if self._tries and planned.drafts and seconds is not None and len(planned.kinds) == 1:
            ((reader, greedy),) = planned.kinds
            name, tokens = self._device.drafters[reader - 1], int(report.emitted.sum())
            params, trials = self._device.params, self._tuner.drafters
            trials.record(params, name, planned.part, greedy, tokens, seconds)
        choice = self._find_choice(planned.load, planned.part)
        if choice is None:
            return False
        return choice.observe(
            planned.drafts, report.emitted, np.asarray(report.rows), seconds, busy
        )

    def _part_of(self, load: int) -> int:
        """Return the part that a number of neighbouring slots fits into."""
        return next(part for part in self._device.parts if part >= load)

    def _find_choice(self, load: int, part: int | None = None) -> DraftChoice | None:
        """Find the choice of a load; None if the rule leaves nothing to choose, or costs are
        unknown.
        """
        part = self._part_of(load) if part is None else part
        live = self._live.get(part)
        return None if live is None else self._choices[part, int(live.find(False, load))]

    def _drafts(self, running: list[Task], part: int) -> bool:
        """Decide whether rounds draft. They do for all who want it, or for nobody."""
        wanting = [task for task in running if _wants_drafts(task)]
        if not wanting or not all(task.reader for task in wanting):
            return False
        choice = self._find_choice(len(running), part)
        return choice is None or choice.wants_drafts()

    def _leaves_early(self, waiting: int) -> bool:
        return self._device.slots <= _FEW or waiting > 0


def _is_greedy(task: Task) -> bool:
    return task.accepted.settings["temperature"] < MIN_TEMPERATURE


def _wants_drafts(task: Task) -> bool:
    return task.accepted.settings["deepest"] > 0
