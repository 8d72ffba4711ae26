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
            *tupled(one),
            marks=() if one in kept else pytest.mark.slow,
        )
        for one in cases
    ]


def mark_thorough(chosen: Collection[Any], cases: Iterable[Any]) -> list[Any]:
    """Mark as thorough the cases of `chosen`; others, which may be marked already, stay as they are.

    Args:
      chosen: cases as they are given; tuples are the values of several arguments.
      cases: all cases, which `slow_except` may have made.

    Raises:
      ValueError: a chosen case is none of the cases, or is marked already.
    """
    params = [one if hasattr(one, "marks") else pytest.param(*tupled(one)) for one in cases]
    plain = [one.values for one in params if not one.marks]
    wanted = [tupled(one) for one in chosen]
    if unknown := [one for one in wanted if one not in plain]:
        raise ValueError(f"{unknown} are none of the unmarked cases {plain}")
    return [
        pytest.param(*one.values, marks=pytest.mark.thorough) if one.values in wanted else one
        for one in params
    ]


def tupled(case: Any) -> tuple:
    return case if isinstance(case, tuple) else (case,)
