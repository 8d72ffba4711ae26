"""Cases of a parametrised test, most of which repeat others in minutes of compilation."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def slow_except(kept: Collection[Any], cases: Iterable[Any]) -> list[Any]:
    """Mark as slow all cases but those in `kept`.

    Args:
      kept: the cases that every run of the tests includes.
      cases: all cases; tuples are the values of several arguments.

    Raises:
      ValueError: a kept case is none of the cases.
    """
    cases = list(cases)
    if unknown := [one for one in kept if one not in cases]:
        raise ValueError(f"{unknown} are none of the cases {cases}")
    return [
        pytest.param(
            *(one if isinstance(one, tuple) else (one,)),
            marks=() if one in kept else pytest.mark.slow,
        )
        for one in cases
    ]
