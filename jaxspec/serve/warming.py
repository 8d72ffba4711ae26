"""Compile an engine's programs in the order of need, while requests already run."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Iterable, Sequence

from jaxspec.serve.device import Device
from jaxspec.serve.drafters import list_configs
from jaxspec.serve.programs import Variant

log = logging.getLogger("jaxspec.serve")

# XLA compiles a program mostly on one core.
_THREADS = 2


def find_first(device: Device, rests: bool) -> list[Variant]:
    """List what the first request needs: a prompt and rounds of one slot, plain ones if they exist.

    Args:
      rests: whether there may be requests that no drafter reads.
    """
    readers = (0,) if rests else range(1, len(list_configs(device.config)) + 1)
    part = device.parts[0]
    return [*(Variant("feed", reader) for reader in readers), _visit(part, not rests)]


def find_next(device: Device, rests: bool) -> list[Variant]:
    """List what is compiled after `find_first`, whatever is asked."""
    readers = range(1, len(list_configs(device.config)) + 1) if rests else ()
    parts = (device.parts[0], device.slots)
    found = [Variant("feed", reader) for reader in readers]
    if rests:
        found.append(_visit(parts[0], True))
    found.append(_visit(parts[1], not rests))
    if rests and len(device.parts) == 1:
        found.append(_visit(parts[1], True))
    found += [Variant("copy"), Variant("clean")]
    found += [Variant("rank")] if device.logprobs else []
    first = find_first(device, rests)
    return [one for one in dict.fromkeys(found) if one not in first]


def _visit(part: int, follows: bool) -> Variant:
    return Variant("visit", int(follows), part)


class Compiler:
    """Compiles programs of a device in threads of its own, those that were wanted first at first.

    What several processes run must be called in all of them, and XLA times kernels while it compiles
    for a GPU, which rounds would disturb. There, `compile_all` is all that is used.
    """

    def __init__(self, device: Device, in_threads: bool):
        """Make it.

        Args:
          in_threads: whether threads may compile.
        """
        self._device, self._in_threads = device, in_threads
        self._wanted: queue.SimpleQueue[Variant] = queue.SimpleQueue()
        self._done: dict[Variant, threading.Event] = {}
        self._seconds: dict[Variant, float] = {}
        self._threads: list[threading.Thread] = []

    @property
    def in_threads(self) -> bool:
        """Whether threads compile; not while other processes follow."""
        return self._in_threads and self._device.followers is None

    def compile_all(self, variants: Iterable[Variant]) -> None:
        """Compile by calls, one after the other. All slots must be free."""
        for variant in variants:
            self._device.run_variant(variant)
            self._done.setdefault(variant, threading.Event()).set()

    def want(self, variants: Iterable[Variant]) -> None:
        """Let threads compile these, unless they have been wanted before."""
        new = [one for one in variants if one not in self._done]
        if new and not self.in_threads:
            raise AssertionError(f"{new} are called for the first time: compile_all forgot them")
        for variant in new:
            self._done[variant] = threading.Event()
            self._wanted.put(variant)
        while new and len(self._threads) < _THREADS:
            thread = threading.Thread(target=self._run, name="compiler", daemon=True)
            self._threads.append(thread)
            thread.start()

    def can_draft(self) -> bool:
        """Whether what rounds cost can be measured: those of the smallest part, which draft or not."""
        part = self._device.parts[0]
        return self.has(_visit(part, True)) and self.has(_visit(part, False))

    def has(self, variant: Variant) -> bool:
        """Whether a program is compiled."""
        done = self._done.get(variant)
        return done is not None and done.is_set()

    def wait(self, variants: Iterable[Variant]) -> None:
        """Wait until these are compiled. They must have been wanted."""
        for variant in variants:
            self._done[variant].wait()

    def list_missing(self) -> list[Variant]:
        """List what was wanted and is not compiled yet."""
        return [variant for variant, done in list(self._done.items()) if not done.is_set()]

    def _run(self) -> None:
        while True:
            variant = self._wanted.get()
            began = time.perf_counter()
            try:
                self._device.compile(variant)
            except Exception:
                # The call that needs it raises the same, where somebody can handle it.
                log.exception("could not compile %s", variant.describe())
            else:
                took = time.perf_counter() - began
                log.info("compiled %s in %.1f s", variant.describe(), took)
            self._done[variant].set()


def cover(slots: Sequence[int], parts: Sequence[int]) -> int:
    """Return the smallest part that holds all of some slots; a part of P begins at a multiple of P."""
    return next(part for part in parts if len({slot // part for slot in slots}) == 1)
