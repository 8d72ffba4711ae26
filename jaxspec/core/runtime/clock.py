"""The clock of all benchmarks: one timed call, fair turns, and no compilation in a figure."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax

from jaxspec.core.runtime.compilations import compilations

Item = TypeVar("Item")
# A decode that still compiles after this many calls is an error.
ATTEMPTS = 4


def time_call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Any, float]:
    """Run a function to its end on the device.

    The clock starts when all arguments are computed and stops when the result is.

    Returns:
      (the result, wall-clock seconds).
    """
    jax.block_until_ready((args, kwargs))
    started = time.perf_counter()
    result = jax.block_until_ready(function(*args, **kwargs))
    return result, time.perf_counter() - started


def order_turns(items: Sequence[Item], prompt: int, repeat: int) -> list[Item]:
    """Return the order in which methods, or other compared items, take their turns in a repeat.

    Repeats come in pairs: the second of a pair runs in reverse order, and each pair starts one item
    later than the pair before. Drift of the machine thus affects all items alike, and no item
    always follows the same other item.

    Args:
      items: the items that are compared.
      prompt: index of the prompt, from 0.
      repeat: index of the repeat, from 0.
    """
    shift = (prompt + repeat // 2) % len(items)
    return [*items[shift:], *items[:shift]][:: -1 if repeat % 2 else 1]


def repeat_until_compiled(call: Callable[[], Any]) -> tuple[Any, float]:
    """Repeat a call until it compiles nothing.

    Returns:
      (the result of that call, the extra seconds that earlier attempts spent compiling).

    Raises:
      RuntimeError: the call compiles every time.
    """
    attempts: list[float] = []
    for _ in range(ATTEMPTS):
        before, started = compilations(), time.perf_counter()
        out = call()
        seconds = time.perf_counter() - started
        if compilations() == before:
            return out, sum(max(attempt - seconds, 0.0) for attempt in attempts)
        attempts.append(seconds)
    raise RuntimeError(
        f"the same decode compiled again in each of {ATTEMPTS} calls: timings would include "
        "compilation; keep shapes and static options the same from call to call"
    )
