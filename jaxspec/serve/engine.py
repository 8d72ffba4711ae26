"""The serving engine: requests wait in a queue, decode in slots, and leave as they finish."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

from jaxspec.call.results import read_round
from jaxspec.core.runtime.jax_settings import under_own_settings
from jaxspec.serve.adapts import Adapts
from jaxspec.serve.checks import Limits, assign_drafter, check_request
from jaxspec.serve.on_device.visit import Report
from jaxspec.serve.publish import find_published
from jaxspec.serve.requests import Finish, QueueFull, ServeRequest, TokenLogprob, Update
from jaxspec.serve.scheduling.counters import Counters
from jaxspec.serve.scheduling.device import Device
from jaxspec.serve.scheduling.feeder import Feeder
from jaxspec.serve.scheduling.follow import PULSE, follow
from jaxspec.serve.scheduling.gatherer import Gatherer, LearningGatherer
from jaxspec.serve.scheduling.pace import Pace
from jaxspec.serve.scheduling.prefixes import HeldPrefixes
from jaxspec.serve.scheduling.schedule import Planned, Schedule
from jaxspec.serve.scheduling.tasks import Task
from jaxspec.serve.scheduling.waiting import WaitingQueue
from jaxspec.serve.scheduling.warming import Compiler, find_first, find_next
from jaxspec.tuner.serving.costs import Costs
from jaxspec.tuner.tuner import Tuner

# Seconds of a busy engine after which it guesses what rounds cost.
_PATIENCE = 20.0
# Seconds until an engine that can do nothing yet looks again.
_PAUSE = 0.02


class Engine:
    """Runs requests in B slots. Make one with `make_engine`.

    `submit`, `cancel`, `idle` and `counters` may be called by any thread, `visit` and `publish` by
    one.

    Attributes:
      slots: B.
      drafters: names of the drafters, the default one first; or `ar` alone.
      drafter: the first of them, that of requests that name none.
      room: most tokens of a prompt together with its new tokens.
      pulse: seconds after which an engine without work wants a visit; None: never.
      adapts: trains a drafter; None if nothing does.
    """

    def __init__(
        self,
        device: Device,
        limits: Limits,
        pace: Pace,
        clock: Callable[[], float],
        queue: int,
        in_background: bool,
        costs: Costs | None,
        tries: bool,
        tuner: Tuner,
        adapts: Adapts | None = None,
    ):
        """Make it; for the arguments see `make_engine`, `Compiler` and `Schedule`."""
        self._device, self._limits, self._clock = device, limits, clock
        self.adapts = adapts
        self._gatherer = Gatherer() if adapts is None else LearningGatherer(device, adapts)
        self._waiting = WaitingQueue(queue, device.slots)
        self._compiler, self._begun = Compiler(device, in_background), 0.0
        self._schedule = Schedule(device, self._compiler, pace, costs, tries, tuner)
        self._tasks: dict[int, Task] = {}  # by slot
        self._prefixes = HeldPrefixes(device.slots)
        self._warm, self._fed_seconds = False, 0.0
        self._counters = Counters(device.slots, device.plan.longest - 1)
        self._feeder = Feeder(device, self._prefixes, self._counters, pace)
        self.slots, self.drafters, self.room = device.slots, limits.names, limits.room
        self.drafter = self.drafters[0]
        self.pulse = None if device.followers is None else PULSE

    @under_own_settings
    def submit(self, request: ServeRequest) -> int:
        """Queue a request and return its id.

        Raises:
          InvalidRequest: a ValueError, whose one line says what to do.
          QueueFull: the queue is full.
        """
        accepted = check_request(request, self._limits)
        task = Task(self._waiting.new_id(), accepted, self._clock(), self._limits.tokenizer)
        try:
            self._waiting.put(task)
        except QueueFull:
            self._counters.observe_submit(queued=False)
            raise
        self._counters.observe_submit(queued=True)
        return task.id

    def check(self, request: ServeRequest) -> None:
        """Refuse what `submit` would refuse, and queue nothing.

        Raises:
          InvalidRequest: a ValueError, whose one line says what to do.
        """
        check_request(request, self._limits)

    def cancel(self, id: int) -> None:
        """End a request; its last update has finish `abort`. Unknown or ended ids change nothing."""
        self._waiting.cancel(id)

    @property
    def idle(self) -> bool:
        """Whether nothing is queued or running."""
        return not self._tasks and not len(self._waiting)

    def counters(self) -> dict[str, Any]:
        """Return figures, see `Counters`: `running`, `waiting`, `tokens`, `rounds`, …"""
        found = self._counters.as_dict(len(self._tasks), len(self._waiting))
        return found | self._gatherer.counters()

    @under_own_settings
    def warm_up(self, wait: bool = True) -> None:
        """Compile what visits need and learn what rounds cost. The first visit does it otherwise.

        Args:
          wait: False: return as soon as requests can run, one at a time and without drafts at
            first. The rest is compiled meanwhile, where that disturbs nothing.

        Raises:
          RuntimeError: the engine is running requests, or this is no process that takes any.
        """
        self._device.check_process()
        if self._tasks:
            raise RuntimeError("the engine runs requests: call warm_up before the first visit")
        compiler, rests = self._compiler, self._schedule.weighs
        first, others = find_first(self._device, rests), find_next(self._device, rests)
        if compiler.in_background:
            compiler.want(first + others)
            compiler.wait(first + others if wait else first)
            compiler.yields = True
        else:
            compiler.compile_all(first + others)
        self._warm, self._begun = True, self._clock()
        self._schedule.learn_costs(measure=wait or not compiler.in_background)
        self._counters.warmed_up()
        self._gatherer.start()

    @property
    def missing(self) -> list[str]:
        """What the engine compiles at present, as words; requests run meanwhile."""
        return [one.describe(self.drafters) for one in self._compiler.list_missing()]

    @property
    def unsettled(self) -> bool:
        """Whether it has yet to learn what rounds cost, until when it does not draft."""
        return self._warm and not self._schedule.knows

    @under_own_settings
    def settle(self) -> bool:
        """Measure what rounds cost, if that is unknown, the programs are there, and nothing runs.

        Returns:
          Whether it did; it takes a second or two, once on a machine.
        """
        if not self.unsettled or not self.idle or not self._compiler.can_draft():
            return False
        with self._gatherer.visiting(self._outdate):
            self._schedule.learn_costs(measure=True)
        for slot in range(self.slots):  # measuring wrote to their caches
            self._prefixes.hold(slot, (), reader=0)
        return True

    @under_own_settings
    def publish(self, weights: Any, drafter: str | None = None) -> None:
        """Replace a drafter's weights, between visits. Texts stay the same; nothing is compiled.

        Requests that run are drafted for by the new weights, though the old ones read their
        beginning. New requests use nothing again that the old ones read.

        Args:
          weights: the drafter's variables, as in `Params.drafters`; they are copied.
          drafter: its name; None: the default one.

        Raises:
          ValueError: the engine has no such drafter, or it learns by itself; an array is missing,
            unknown or of another shape or dtype; or several processes share the target.
        """
        drafter = self.drafter if drafter is None else drafter
        reader = find_published(drafter, self.drafters)
        self._gatherer.check_published(drafter)
        self._device.publish(drafter, weights)
        self._outdate(reader)

    def _outdate(self, reader: int) -> None:
        """Note that a drafter has other weights than those that read the slots."""
        self._prefixes.forget_reader(reader)
        for task in self._tasks.values():
            task.outdated |= task.reader == reader

    @under_own_settings
    def visit(self) -> list[Update]:
        """Visit the device once: feed prompts, then run up to k rounds. Return what changed."""
        if not self._warm:
            self.warm_up()
        with self._gatherer.visiting(self._outdate):
            return self._visit()

    def _visit(self) -> list[Update]:
        """Visit a device that is warm."""
        updates = self._drop() + self._expire()
        if not self._schedule.knows and self._clock() - self._begun > _PATIENCE:
            self._schedule.guess()
        self._admit()
        began = time.perf_counter()
        fed = self._feeder.feed(
            {slot: task for slot, task in self._tasks.items() if self._schedule.can_feed(task)}
        )
        self._fed_seconds += time.perf_counter() - began
        updates += self._end_prompts()
        if any(task.decodes for task in self._tasks.values()):
            updates += self._decode(alone=fed.waited)
        elif not fed.some:
            self._device.rest()
            if self._tasks:  # whose program is being compiled
                time.sleep(_PAUSE)
        for update in updates:
            self._counters.observe_update(update)
        return updates

    @under_own_settings
    def follow(self) -> None:
        """In a process after the first: run what the engine of process 0 runs, until it is closed."""
        follow(self._device)

    def close(self) -> None:
        """Let the processes end that follow, and a drafter that learns. It is the last call."""
        self._gatherer.close()
        self._device.end()

    def _drop(self) -> list[Update]:
        """End the requests that were cancelled."""
        cancelled = self._waiting.take_cancelled()
        if not cancelled:
            return []
        ended = [task.end("abort") for task in self._waiting.drop(cancelled)]
        running = [slot for slot, task in self._tasks.items() if task.id in cancelled]
        return ended + [self._end(slot, "abort") for slot in running]

    def _expire(self) -> list[Update]:
        """End the requests whose deadline has passed."""
        now = self._clock()
        late = self._waiting.late(now)
        if late:
            late = self._waiting.drop({task.id for task in late})
        running = [slot for slot, task in self._tasks.items() if task.is_late(now)]
        ended = [task.end("deadline") for task in late]
        return ended + [self._end(slot, "deadline") for slot in running]

    def _end(self, slot: int, finish: Finish) -> Update:
        update = self._tasks[slot].end(finish)
        self._free(slot)
        return update

    def _free(self, slot: int) -> None:
        task = self._tasks.pop(slot)
        self._gatherer.end(slot, task)
        self._device.close(slot)
        self._prefixes.hold(slot, task.cached, task.cached_by)
        self._prefixes.free(slot)
        if task.started is not None:
            self._waiting.observe(self._clock() - task.started)

    def _admit(self) -> None:
        """Give free slots to the requests that have waited longest."""
        while free := [slot for slot in range(self.slots) if slot not in self._tasks]:
            load = min(len(self._tasks) + len(self._waiting), self.slots)
            task = self._waiting.take()
            if task is None:
                return
            task.reader = self._schedule.choose_reader(task, load)
            if task.reader not in (0, task.accepted.reader):
                task.accepted = assign_drafter(task.accepted, task.reader, self._limits)
            slot = self._prefixes.choose_slot(free, task.accepted.prompt, task.reader)
            task.started = self._clock()
            self._counters.queue_seconds += task.started - task.submitted
            self._tasks[slot] = task

    def _end_prompts(self) -> list[Update]:
        """Hand out the log-probabilities of the prompts that are fed; end who asks for no more."""
        asking = [(slot, task) for slot, task in self._tasks.items() if task.decodes]
        updates = []
        for slot, task in asking:
            if task.prompt_logprobs is None:
                continue
            updates.append(task.end_prompt())
            if updates[-1].finish is not None:
                self._free(slot)
            if updates[-1].finish == "error":
                self._clean_slot(slot)
        return updates

    def _decode(self, alone: bool) -> list[Update]:
        """Run rounds and hand out what they emitted.

        Args:
          alone: whether the device has nothing else to do, so that the time is that of the rounds.
        """
        updates: list[Update] = []
        for planned in self._schedule.plan(self._tasks, len(self._waiting)):
            updates += self._run(planned, alone)
            alone = True
        return updates

    def _run(self, planned: Planned, alone: bool) -> list[Update]:
        """Run a visit, see `_decode`."""
        running = {slot: self._tasks[slot] for slot in planned.slots}
        for slot, task in running.items():
            request, made = task.accepted.request, len(task.tokens)
            self._device.limit(
                slot, request.max_new_tokens - made, max(0, request.min_tokens - made)
            )
            if planned.lets_go:
                self._let_go(slot, task)
        began = time.perf_counter()
        report = self._device.visit(
            planned.rounds,
            planned.leaves,
            planned.drafts,
            follows=planned.follows,
            first=planned.first,
            part=planned.part,
        )
        seconds = time.perf_counter() - began
        self._counters.observe_visit(report, planned.drafts, seconds)
        busy, self._fed_seconds = self._fed_seconds + seconds, 0.0
        self._gatherer.observe(running, report, busy)
        rests = self._schedule.observe(planned, report, seconds if alone else None, busy)
        for slot, task in running.items():
            unread = task.unread + len(report.tokens[slot])
            reads = planned.drafts or not task.reader
            task.unread = 0 if reads else min(unread, self._device.waiting)
            if rests:
                self._let_go(slot, task)
        logprobs = self._device.read_logprobs(
            {s: (len(report.tokens[s]), t.accepted.request.logprobs) for s, t in running.items()}
        )
        updates = [
            self._hand_out(slot, task, report, logprobs.get(slot, []))
            for slot, task in running.items()
        ]
        return updates + self._clean(report)

    def _let_go(self, slot: int, task: Task) -> None:
        """Let a request go on without its drafter."""
        self._gatherer.end(slot, task)
        task.let_go()
        self._device.let_go(slot)

    def _clean(self, report: Report) -> list[Update]:
        """Clean the slots that broke; end the requests that did so while their prompts were fed."""
        broken = [slot for slot in range(self.slots) if report.broken[slot]]
        ended = [self._end(slot, "error") for slot in broken if slot in self._tasks]
        for slot in broken:
            self._clean_slot(slot)
        return ended

    def _clean_slot(self, slot: int) -> None:
        self._device.clean(slot)
        self._prefixes.hold(slot, (), reader=0)

    def _hand_out(
        self, slot: int, task: Task, report: Report, logprobs: list[TokenLogprob]
    ) -> Update:
        tokens, drafted = report.tokens[slot], []
        for emitted, drafts in zip(report.emitted[slot], report.drafts[slot], strict=True):
            drafted += [place < drafts for place in range(emitted)]
        tree, rounds = None, int((report.emitted[slot] > 0).sum())
        if task.accepted.request.trace and rounds:
            tree = read_round(*self._device.read_rounds(), slot)
        done, broken = bool(report.done[slot]), bool(report.broken[slot])
        update = task.add(tokens, drafted, done, broken, logprobs)
        verified = report.verified[slot]
        update = dataclasses.replace(
            update,
            rounds=rounds,
            drafts=int((verified > 0).sum()),
            draft_tokens=int(verified.sum()),
            tree=tree,
        )
        if update.finish is not None:
            self._free(slot)
        return update
