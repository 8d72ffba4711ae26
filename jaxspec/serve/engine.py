"""The serving engine: what drives B slots on the device."""

from __future__ import annotations

from typing import Any, Protocol

from jaxspec.serve.requests import ServeRequest, Update


class Engine(Protocol):
    """Runs requests in slots. `submit` and `cancel` may be called by any thread.

    One thread calls `visit` while the engine is not idle.
    """

    def submit(self, request: ServeRequest) -> int:
        """Queue a request and return its id.

        Raises:
          ValueError: the request is invalid; one line says what to do.
          QueueFull: the queue is full.
        """
        ...

    def cancel(self, id: int) -> None:
        """End a request; its last update has finish `abort`. Unknown or ended ids change nothing."""
        ...

    def visit(self) -> list[Update]:
        """Visit the device once: prefill, then up to k rounds. Return what changed."""
        ...

    @property
    def idle(self) -> bool:
        """Whether nothing is queued or running."""
        ...

    def warm_up(self) -> None:
        """Compile and measure everything that visits need."""
        ...

    def counters(self) -> dict[str, Any]:
        """Return figures: `running`, `waiting`, `tokens`, `rounds`, `accepted` (a list per position), …"""
        ...
