"""Percentiles, throughput and goodput of a load."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxspec.bench.endpoint.load import Measured
from jaxspec.bench.endpoint.request import Asked
from jaxspec.bench.report.table import Column, Table, fixed

PERCENTILES = (50, 95, 99)


def summarise(
    measured: Measured, first_goal: float | None = None, per_token_goal: float | None = None
) -> dict[str, Any]:
    """Summarise a load.

    Args:
      first_goal: seconds in which the first token should come; None: any.
      per_token_goal: seconds that a further token should take; None: any.

    Returns:
      counts, rates per second and percentiles in milliseconds. `goodput` counts the answers that
      meet both goals, per second.
    """
    done = [one for one in measured.asked if one.error is None]
    per_token = [one.per_token for one in done if one.per_token is not None]
    good = [one for one in done if _is_good(one, first_goal, per_token_goal)]
    tokens = sum(one.tokens for one in done)
    errors = collections.Counter(one.error for one in measured.asked if one.error is not None)
    return {
        "requests": len(measured.asked),
        "completed": len(done),
        "errors": dict(errors),
        "seconds": measured.seconds,
        "tokens": tokens,
        "requests_per_second": len(done) / measured.seconds,
        "tokens_per_second": tokens / measured.seconds,
        "goodput": len(good) / measured.seconds,
        "ms": {
            "first token": _percentiles([one.first for one in done]),
            "per token": _percentiles(per_token),
            "between parts": _percentiles([gap for one in done for gap in one.gaps]),
            "whole answer": _percentiles([one.total for one in done]),
        },
    }


def make_table(summary: dict[str, Any]) -> Table:
    """Make the table of the percentiles."""
    number = fixed(1)
    columns = [Column("ms")]
    columns += [Column(f"p{one}", number, "right") for one in PERCENTILES]
    rows = [[name, *values.values()] for name, values in summary["ms"].items()]
    return Table(columns, rows)


def _is_good(one: Asked, first_goal: float | None, per_token_goal: float | None) -> bool:
    soon = first_goal is None or one.first <= first_goal
    return soon and (per_token_goal is None or (one.per_token or 0.0) <= per_token_goal)


def _percentiles(seconds: Sequence[float]) -> dict[str, float | None]:
    """Return percentiles in milliseconds, by linear interpolation; None without values."""
    values = np.percentile(seconds, PERCENTILES) * 1e3 if seconds else [None] * len(PERCENTILES)
    return {
        f"p{one}": None if value is None else float(value)
        for one, value in zip(PERCENTILES, values, strict=True)
    }
