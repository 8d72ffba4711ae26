"""Stop a run when its machine is taken away or somebody presses Ctrl-C, without losing its steps.

Machines that may be taken away send SIGTERM some seconds before.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

import jax

from jaxspec.core.runtime import interrupts


class StopRequest:
    """What has asked the run to stop.

    Attributes:
      number: of the signal; None while nothing has asked.
    """

    number: int | None = None

    def __init__(self) -> None:
        # A thread cannot catch signals. Processes of one run get them at different steps.
        main = threading.current_thread() is threading.main_thread()
        self._may_catch = main and jax.process_count() == 1
        self._before: dict[int, Any] = {}

    def catch(self, number: int) -> None:
        """Let a signal only ask to stop, once; then it does again what it did before."""
        if self._may_catch and number not in self._before:
            self._before[number] = signal.signal(number, self._ask)

    def restore(self) -> None:
        """Let all signals do again what they did before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.number = number
        signal.signal(number, self._before[number])
        if number == signal.SIGINT:
            interrupts.say("the step that runs is still saved; Ctrl-C again ends at once")
            interrupts.goes_on()

    @property
    def is_keyboard(self) -> bool:
        """Whether it was Ctrl-C."""
        return self.number == signal.SIGINT


@contextlib.contextmanager
def catch_stop() -> Iterator[StopRequest]:
    """Let SIGTERM only ask to stop; the same signal again ends the process as it would.

    The run lets Ctrl-C do the same, by `StopRequest.catch`, once there is a step to save: the first
    one compiles, which takes long. Processes of one run get signals at different steps, and all
    must write a checkpoint together: with several, and in a thread, nothing is caught.
    """
    request = StopRequest()
    request.catch(signal.SIGTERM)
    try:
        yield request
    finally:
        request.restore()
