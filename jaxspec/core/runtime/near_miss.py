"""Say what was probably meant where a name is not known."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

# Lower, and short names of nothing in common are called alike; higher, and `best-frist` is missed.
_ALIKE = 0.65


def find_near_miss(given: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most like `given`, whatever the case; None if none is."""
    by_lower = {name.lower(): name for name in known}
    near = difflib.get_close_matches(given.lower(), by_lower, n=1, cutoff=_ALIKE)
    return by_lower[near[0]] if near else None


def choose_one(given: object, known: Iterable[str]) -> str:
    """Advise to choose one of the known names, the nearest first: the end of an error's message."""
    names = tuple(known)
    near = find_near_miss(given, names) if isinstance(given, str) else None
    hint = "" if near is None else f"did you mean {near!r}? If not, "
    return f"{hint}choose one of {', '.join(names)}"


def naming_options(function: Callable[P, R]) -> Callable[P, R]:
    """Let a function name the nearest of its options for one that it doesn't have.

    Python does so by itself from 3.13 on.
    """
    names = tuple(inspect.signature(function).parameters)

    @functools.wraps(function)
    def call(*args: P.args, **options: P.kwargs) -> R:
        for name in options:
            if name not in names:
                raise TypeError(f"no option is called {name!r}: {choose_one(name, names)}")
        return function(*args, **options)

    return call
