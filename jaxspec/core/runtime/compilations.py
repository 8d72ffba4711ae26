"""Count XLA's compilations and their seconds, to tell what of a call's time was compiling."""

from __future__ import annotations

import functools

import jax

_COMPILED = "/jax/core/compile/backend_compile_duration"
_SAVED = "/jax/compilation_cache/compile_time_saved_sec"
_count, _seconds, _saved = 0, 0.0, 0.0


def compilations() -> int:
    """Compilations of this process since the first call of a function of this module."""
    _listen()
    return _count


def compile_seconds() -> float:
    """Seconds that this process compiled since the first call of a function of this module."""
    _listen()
    return _seconds


def saved_seconds() -> float:
    """Seconds of compiling that programs from disk saved since the first call of such a function."""
    _listen()
    return _saved


@functools.cache
def _listen() -> None:
    """Count from now on (listeners cannot be removed, hence one for the process)."""

    def count(event: str, duration_secs: float, **kwargs: str | int) -> None:
        global _count, _seconds, _saved
        if event == _COMPILED:
            _count, _seconds = _count + 1, _seconds + duration_secs
        elif event == _SAVED:
            _saved += duration_secs

    jax.monitoring.register_event_duration_secs_listener(count)
