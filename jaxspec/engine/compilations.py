"""Count XLA's compilations, to tell whether the time of a call includes compiling."""

from __future__ import annotations

import functools

import jax

_COMPILED = "/jax/core/compile/backend_compile_duration"
_count = 0


def compilations() -> int:
    """Compilations of this process since the first call of this function."""
    _listen()
    return _count


@functools.cache
def _listen() -> None:
    """Count from now on (listeners cannot be removed, hence one for the process)."""

    def count(event: str, duration_secs: float, **kwargs: str | int) -> None:
        global _count
        _count += event == _COMPILED

    jax.monitoring.register_event_duration_secs_listener(count)
