"""Compile an engine's programs in the order of need, while requests already run."""

from __future__ import annotations

import concurrent.futures
import functools
import logging
import os
import threading
import time
import weakref
from collections.abc import Iterable, Sequence
from concurrent.futures import Future

from jaxspec.core.runtime.background import compile_in_background
from jaxspec.serve.on_device.joint_plan import list_configs
from jaxspec.serve.on_device.programs import Variant
from jaxspec.serve.scheduling.device import Device

log = logging.getLogger("jaxspec.serve")

# Priority of compilation while requests run, as of `nice`.
_NICE = 10


def find_first(device: Device, rests: bool) -> list[Variant]:
    """List what the first request needs: a prompt and rounds of one slot, plain ones if they exist.

    Args:
      rests: whether there may be requests that no drafter reads.
    """
    part = device.parts[0]
    return [*_of_prompts("feed", device, rests), _visit(part, not rests)]


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
    found += [Variant("copy"), Variant("clean"), Variant("count")]
    if device.state.evidence is not None:
        found.append(Variant("evidence"))
    if device.logprobs:
        found += [Variant("rank"), *_of_prompts("score", device, rests)]
    first = find_first(device, rests)
    return [one for one in dict.fromkeys(found) if one not in first]


def _of_prompts(name: str, device: Device, rests: bool) -> list[Variant]:
    """List the forms of a program that reads prompts: without a drafter, or else with each."""
    readers = (0,) if rests else range(1, len(list_configs(device.config)) + 1)
    return [Variant(name, reader) for reader in readers]


def _visit(part: int, follows: bool) -> Variant:
    return Variant("visit", int(follows), part)


class Compiler:
    """Compiles programs of a device in the background, those that were wanted first at first.

    What several processes run must be called in all of them, and XLA times kernels while it
    compiles for a GPU, which rounds would disturb. There, `compile_all` is all that is used.

    Attributes:
      yields: whether requests run already, so that compilers leave them the processor.
    """

    def __init__(self, device: Device, in_background: bool):
        """Make it.

        Args:
          in_background: whether programs may be compiled while others run.
        """
        self._device, self._in_background = device, in_background
        self.yields = False
        self._begun: dict[Variant, Future[None]] = {}

    @property
    def in_background(self) -> bool:
        """Whether `want` can be used; not while other processes follow."""
        return self._in_background and self._device.followers is None

    def compile_all(self, variants: Iterable[Variant]) -> None:
        """Compile by calls, one after the other. All slots must be free."""
        for variant in variants:
            self._device.run_variant(variant)
            self._begun[variant] = Future()
            self._begun[variant].set_result(None)

    def want(self, variants: Iterable[Variant]) -> None:
        """Compile these in the background, unless they have been wanted before."""
        for variant in variants:
            if variant not in self._begun:
                assert self.in_background, f"{variant} is called for the first time"
                # Nothing is compiled, nor kept alive, for an engine that is gone.
                compile = functools.partial(_compile, weakref.ref(self), variant)
                self._begun[variant] = compile_in_background(compile)

    def has(self, variant: Variant) -> bool:
        """Whether a program is compiled. One that could not be raises its error where it is called."""
        begun = self._begun.get(variant)
        return begun is not None and begun.done()

    def wait(self, variants: Iterable[Variant]) -> None:
        """Wait until these are compiled. They must have been wanted."""
        concurrent.futures.wait([self._begun[variant] for variant in variants])

    def can_draft(self) -> bool:
        """Whether what rounds cost can be measured: those of the smallest part, which draft or not."""
        part = self._device.parts[0]
        return self.has(_visit(part, True)) and self.has(_visit(part, False))

    def list_missing(self) -> list[Variant]:
        """List what was wanted and is not compiled yet."""
        return [variant for variant, begun in list(self._begun.items()) if not begun.done()]


def _compile(owner: weakref.ref[Compiler], variant: Variant) -> None:
    compiler = owner()
    if compiler is not None:
        if compiler.yields and hasattr(os, "setpriority"):
            # On Linux the priority is the thread's, and that of the threads that XLA starts from
            # it.
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        began = time.perf_counter()
        compiler._device.compile(variant)
        took = time.perf_counter() - began
        log.info("compiled %s in %.1f s", variant.describe(compiler._device.drafters), took)


def cover(slots: Sequence[int], parts: Sequence[int]) -> int:
    """Return the smallest part that holds all of some slots; a part of P begins at a multiple of P."""
    return next(part for part in parts if len({slot // part for slot in slots}) == 1)
