"""Say what was probably meant where a name is not known."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
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


def naming_options(
    function: Callable[P, R], records: Mapping[str, type] = MappingProxyType({})
) -> Callable[P, R]:
    """Let a function name the nearest of its options for one that it doesn't have.

    Python does so by itself from 3.13 on, but knows of no records.

    Args:
      records: {option: the dataclass that it takes}. A field of one that is given to the function
        is told its place.
    """
    names = tuple(name for name in inspect.signature(function).parameters if name != "self")

    @functools.wraps(function)
    def call(*args: P.args, **options: P.kwargs) -> R:
        for name, value in options.items():
            if name not in names:
                raise TypeError(_explain(name, value, names, records))
        return function(*args, **options)

    return call


def naming_fields(records: Mapping[str, type]) -> None:
    """Let dataclasses name the nearest of their fields, or the record of which it is a field.

    Args:
      records: {option: the dataclass that it takes}, see `naming_options`.
    """
    for kind in records.values():
        others = {option: other for option, other in records.items() if other is not kind}
        # A type checker takes the __init__ that a dataclass makes for that of `object`.
        kind.__init__ = naming_options(kind.__init__, others)  # type: ignore[misc]


def _explain(name: str, value: object, names: tuple[str, ...], records: Mapping[str, type]) -> str:
    """Say what to do with an option that a function does not have."""
    near = find_near_miss(name, names)
    for option, kind in records.items():
        fields = [field.name for field in dataclasses.fields(kind)]
        own = name if name in fields else find_near_miss(name, fields)
        if own == name or (near is None and own is not None):
            said = f"{name!r} is" if own == name else f"no option is called {name!r}: {own!r} is"
            shown = repr(value).replace("\n", " ")
            shown = shown if len(shown) <= 60 else "..."
            return (
                f"{said} an option of {kind.__name__}: give "
                f"{option}=jaxspec.{kind.__name__}({own}={shown})"
            )
    return f"no option is called {name!r}: {choose_one(name, names)}"
