"""Gather what rounds committed, request by request, for those who train the drafter."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from jaxspec.round.sizes import prompt_chunk
from jaxspec.serve.adapts import Adapts, ServedText
from jaxspec.serve.on_device.visit import Report
from jaxspec.serve.scheduling.device import Device
from jaxspec.serve.scheduling.tasks import Task


@dataclasses.dataclass
class Gathered:
    """Rounds of a request so far.

    Attributes:
      tokens: that they committed.
      counts, rejected, drafted: see `ServedText`.
      loads: slots that decoded in each visit of them.
      versions: rounds by the version of the drafter.
    """

    tokens: list[int] = dataclasses.field(default_factory=list)
    counts: list[int] = dataclasses.field(default_factory=list)
    rejected: list[bool] = dataclasses.field(default_factory=list)
    drafted: list[bool] = dataclasses.field(default_factory=list)
    loads: list[int] = dataclasses.field(default_factory=list)
    versions: collections.Counter[int] = dataclasses.field(default_factory=collections.Counter)


class Gatherer:
    """Gathers nothing: no drafter learns."""

    def start(self) -> None:
        """Begin to learn: the engine is warmed up."""

    def visiting(self, outdate: Callable[[int], None]) -> contextlib.AbstractContextManager[None]:
        """Have the device for a visit. A version of a drafter may be published first.

        Args:
          outdate: called with the number of a drafter that has other weights now.
        """
        return contextlib.nullcontext()

    def observe(self, running: Mapping[int, Task], report: Report, seconds: float) -> None:
        """Note what a visit did for the requests of some slots.

        Args:
          seconds: of the device, with the prompts that were fed before it.
        """

    def end(self, slot: int, task: Task) -> None:
        """Hand over a request that ends, or goes on without its drafter."""

    def check_published(self, drafter: str) -> None:
        """Refuse weights of a drafter that learns."""

    def counters(self) -> dict[str, Any]:
        """Return figures under `adaptation`, if a drafter learns."""
        return {}

    def close(self) -> None:
        """End, and forget all texts."""


class LearningGatherer(Gatherer):
    """Gathers the rounds of the requests that may be learned from.

    A request that breaks is one too: what it committed before was right.
    """

    def __init__(self, device: Device, adapts: Adapts):
        self._device, self._adapts = device, adapts
        self._reader = 1 + device.drafters.index(adapts.drafter)
        self._gathered: dict[int, Gathered] = {}  # by id of the request
        self._seconds = 0.0

    def start(self) -> None:
        """See `Adapts`."""
        self._adapts.start()

    @contextlib.contextmanager
    def visiting(self, outdate: Callable[[int], None]) -> Iterator[None]:
        """Have the device, after one pass of training at most, and swap versions."""
        self._adapts.begin_visit()
        try:
            published = self._adapts.publish(self._device.params)
            if published is not None:
                self._device.params = published
                outdate(self._reader)
            yield
        finally:
            self._adapts.end_visit()

    def observe(self, running: Mapping[int, Task], report: Report, seconds: float) -> None:
        """Note the rounds of those that the drafter drafts for."""
        self._seconds += seconds
        for slot, task in running.items():
            if report.rejected is None or not self._may_learn(task):
                continue
            ran = report.emitted[slot] > 0
            known = self._gathered.setdefault(task.id, Gathered())
            known.tokens += report.tokens[slot]
            known.counts += report.emitted[slot][ran].tolist()
            known.rejected += report.rejected[slot][ran].tolist()
            known.drafted += (report.verified[slot][ran] > 0).tolist()
            known.loads.append(len(running))
            known.versions[self._adapts.version] += int(ran.sum())

    def end(self, slot: int, task: Task) -> None:
        """Hand over a request with its evidence, if that is wanted."""
        known = self._gathered.pop(task.id, None)
        if known is None or not any(known.drafted):
            return
        taken, self._seconds = self._seconds, 0.0
        ((version, _),) = known.versions.most_common(1)
        text = ServedText(
            self._device.take_evidence(slot) if self._adapts.wants else None,
            task.accepted.prompt,
            task.fed_from,
            prompt_chunk(),
            known.tokens,
            np.array(known.counts, np.int64),
            np.array(known.rejected, bool),
            np.array(known.drafted, bool),
            taken,
            float(np.mean(known.loads)),
            version,
        )
        self._adapts.hear(text)

    def check_published(self, drafter: str) -> None:
        """Refuse weights of a drafter that learns.

        Raises:
          ValueError: it is this one.
        """
        if drafter == self._adapts.drafter:
            raise ValueError(f"{drafter!r} learns from this engine: publish to one without --adapt")

    def counters(self) -> dict[str, Any]:
        """Return figures under `adaptation`."""
        return {"adaptation": self._adapts.counters()}

    def close(self) -> None:
        """See `Adapts`."""
        self._adapts.close()

    def _may_learn(self, task: Task) -> bool:
        """Whether the drafter drafts for a request, which may be learned from."""
        drafts = task.reader == self._reader and task.accepted.settings["deepest"] > 0
        return drafts and task.accepted.request.adapt
