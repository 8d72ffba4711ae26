"""Who uses a device: a drafter in training, or somebody else between its passes."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any, Protocol

import jax


class Ended(Exception):
    """Training is to end, between two passes."""


class Turns(Protocol):
    """What training asks for the device that it runs on.

    Attributes:
      shared: whether somebody else uses it between passes.
    """

    @property
    def shared(self) -> bool: ...

    def clock(self) -> float:
        """Return seconds, without those that training waited for the device."""
        ...

    def pause(self, pending: Any) -> None:
        """Let others use the device between two passes, of which the first computes `pending`.

        Raises:
          Ended: training is to end.
        """

    def released(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which others may use the device."""
        ...


class OwnDevice:
    """Nobody else uses the device."""

    shared = False

    def __init__(self) -> None:
        self._ended = False

    def clock(self) -> float:
        """Return seconds."""
        return time.perf_counter()

    def pause(self, pending: Any) -> None:
        """Go on, unless training is to end."""
        if self._ended:
            raise Ended

    def released(self) -> contextlib.AbstractContextManager[None]:
        """Return a context of no effect."""
        return contextlib.nullcontext()

    def begin(self) -> None:
        """Begin to learn from a query."""
        self.pause(None)

    def end(self) -> None:
        """End a query."""

    def begin_visit(self) -> None:
        """Begin to use another device."""

    def end_visit(self) -> None:
        """End it."""

    def close(self) -> None:
        """Let training end at its next pause."""
        self._ended = True


class SharedDevice:
    """An engine and a thread that trains take turns: between two visits there is one pass, at most.

    While the engine has nothing to do, training goes on without pauses. A visit that begins then
    waits for the pass that runs.
    """

    shared = True

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._visits = False  # whether the engine has the device, or waits for it
        self._waits = self._granted = self._trains = self._ended = False
        self._waited = 0.0

    def clock(self) -> float:
        """Return seconds, without those that training waited."""
        return time.perf_counter() - self._waited

    def begin_visit(self) -> None:
        """Let a pass run if one waits, and take the device after it."""
        with self._changed:
            self._visits, self._granted = True, self._waits
            self._changed.notify_all()
            self._changed.wait_for(lambda: not (self._granted or self._trains))

    def end_visit(self) -> None:
        """Give the device back."""
        with self._changed:
            self._visits = False
            self._changed.notify_all()

    def begin(self) -> None:
        """Wait for the device.

        Raises:
          Ended: training is to end.
        """
        began = time.perf_counter()
        with self._changed:
            self._waits = True
            self._changed.wait_for(lambda: self._granted or not self._visits or self._ended)
            self._waits = self._granted = False
            self._trains = not self._ended
            self._waited += time.perf_counter() - began
            self._changed.notify_all()
            if self._ended:
                raise Ended

    def end(self) -> None:
        """Give the device back."""
        with self._changed:
            self._trains = False
            self._changed.notify_all()

    def pause(self, pending: Any) -> None:
        """Let a visit run that waits, once what training computes is done."""
        jax.block_until_ready(pending)
        self.end()
        self.begin()

    @contextlib.contextmanager
    def released(self) -> Any:
        """Give the device back meanwhile."""
        self.end()
        yield
        self.begin()

    def close(self) -> None:
        """Let training end at its next pause."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
