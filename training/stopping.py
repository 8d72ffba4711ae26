"""Stop a run when its machine is taken away or somebody presses Ctrl-C, without losing its steps.

Machines that may be taken away send SIGTERM some seconds before.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

import jax

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopRequest:
    """What has asked the run to stop.

    Attributes:
      number: of the signal; None while nothing has asked.
    """

    number: int | None = None

    @property
    def is_keyboard(self) -> bool:
        """Whether it was Ctrl-C."""
        return self.number == signal.SIGINT


@contextlib.contextmanager
def catch_stop() -> Iterator[StopRequest]:
    """Let SIGTERM and Ctrl-C only ask to stop; the same signal again ends the process as it would.

    Processes of one run get signals at different steps, and all must write a checkpoint together:
    with several, and in a thread, which cannot catch signals, nothing is caught.
    """
    request, before = StopRequest(), {}

    def ask(number: int, frame: FrameType | None) -> None:
        request.number = number
        signal.signal(number, before[number])

    if jax.process_count() == 1 and threading.current_thread() is threading.main_thread():
        before = {number: signal.signal(number, ask) for number in _SIGNALS}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
