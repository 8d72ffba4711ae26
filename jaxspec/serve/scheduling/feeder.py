"""Feed prompts into slots between visits."""

from __future__ import annotations

import math
import time
from typing import NamedTuple

from jaxspec.round.sizes import prompt_chunk
from jaxspec.serve.scheduling.counters import Counters
from jaxspec.serve.scheduling.device import Device
from jaxspec.serve.scheduling.pace import Pace
from jaxspec.serve.scheduling.prefixes import HeldPrefixes
from jaxspec.serve.scheduling.tasks import Task

# Prompts are fed while the host goes on. One time in so many it waits for them, so that the times
# of chunks, and of the rounds after them, are known under steady load too.
_WAITS = 4


class Fed(NamedTuple):
    """What was fed.

    Attributes:
      some: whether there was something to feed.
      waited: whether the device has nothing of it left to do.
    """

    some: bool
    waited: bool


class Feeder:
    """Feeds prompts, from the rows that slots still hold on."""

    def __init__(self, device: Device, prefixes: HeldPrefixes, counters: Counters, pace: Pace):
        self._device, self._prefixes = device, prefixes
        self._counters, self._pace = counters, pace
        self._unwaited = 0

    def feed(self, tasks: dict[int, Task]) -> Fed:
        """Feed prompts of tasks by slot: for about a visit's time if others decode, else whole ones."""
        feeding = [slot for slot, task in tasks.items() if not task.decodes]
        if not feeding:
            return Fed(some=False, waited=True)
        feeding.sort(key=lambda slot: tasks[slot].id)
        busy = len(feeding) < len(tasks)
        left = self._pace.chunks() if busy else math.inf
        began, chunks = time.perf_counter(), 0
        for slot in feeding:
            if chunks < left:
                chunks += self._feed_slot(slot, tasks[slot], left - chunks)
        self._unwaited += 1
        if self._unwaited < _WAITS:
            return Fed(some=True, waited=False)
        self._unwaited = 0
        self._device.wait()
        self._pace.observe_feed(chunks, time.perf_counter() - began)
        return Fed(some=True, waited=True)

    def _feed_slot(self, slot: int, task: Task, most: float) -> int:
        """Feed up to `most` chunks of a prompt, and return how many."""
        prompt, device, size = task.accepted.prompt, self._device, prompt_chunk()
        start = max(task.fed, 0)
        if task.fed < 0 and task.prompt_logprobs is None:  # of rows in a cache there are none
            start = task.fed_from = self._reuse(slot, task)
        chunks = min(most, math.ceil((len(prompt) - 1 - start) / size))
        end = int(min(len(prompt) - 1, start + chunks * size))
        asked = task.accepted.request.prompt_logprobs
        found = device.feed(slot, prompt, start, end, task.reader, asked)
        if task.prompt_logprobs is not None:
            task.prompt_logprobs += found
        self._counters.prompt_tokens += end - start
        task.fed = end
        self._prefixes.hold(slot, prompt[:end], task.cached_by)
        if task.decodes:
            if task.accepted.penalised:
                device.count(slot, prompt)
            settings = task.accepted.settings | {"reader": task.reader}
            device.open(slot, settings, task.accepted.stop_ids)
        return int(chunks)

    def _reuse(self, slot: int, task: Task) -> int:
        """Return how many tokens of a prompt a slot holds, after a copy if another holds more."""
        prompt, reader = task.accepted.prompt, task.reader
        source, count = self._prefixes.find(prompt, reader)
        own = self._prefixes.count(slot, prompt, reader)
        if count > own:
            self._device.copy(source, slot)
        self._counters.reused_tokens += max(count, own)
        return max(count, own)
