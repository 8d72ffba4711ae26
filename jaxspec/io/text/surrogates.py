"""Texts with halves of surrogate pairs, which are no valid Unicode."""

from __future__ import annotations

import re
from typing import Any

_SURROGATES = re.compile("[\\ud800-\\udfff]+")


def replace_surrogates(value: Any) -> Any:
    """Put U+FFFD in place of halves of surrogate pairs in all strings of a JSON value.

    Python's strings may hold such halves, from JSON's escapes and from the command line. Whole pairs
    become their characters. Source: WHATWG's conversion to scalar values (USVString of Web IDL).
    """
    copied = [value]
    waiting: list[Any] = [copied]  # copies whose values are not; a request may be nested deeply
    while waiting:
        here = waiting.pop()
        items = here.items() if isinstance(here, dict) else enumerate(here)
        for key, one in [item for item in items if isinstance(item[1], str | list | dict)]:
            if isinstance(one, str):
                here[key] = _replace_in(one)
            elif isinstance(one, list):
                here[key] = list(one)
                waiting.append(here[key])
            elif isinstance(one, dict):
                here[key] = {_replace_in(name): value for name, value in one.items()}
                waiting.append(here[key])
    return copied[0]


def _replace_in(text: Any) -> Any:
    return _SURROGATES.sub(_join_pairs, text) if isinstance(text, str) else text


def _join_pairs(found: re.Match[str]) -> str:
    return found[0].encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
