"""Rules over reports of the rank-1 gap."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.reproduce.claim import Finding, Reports
from benchmarks.reproduce.decide.rules import Figure, above, combine, find
from jaxspec.core.bootstrap import LEVEL

Decide = Callable[[Reports], Finding]
_RESAMPLES = 2000


def _of(reports: Reports, drafter: str) -> dict[str, Any]:
    return next(one for one in reports["gaps"]["report"]["results"] if one["drafter"] == drafter)


def _resample(function: Callable[[np.ndarray], float], count: int) -> tuple[float, float]:
    """Bound a figure of prompts by the bootstrap; `function` takes the indices drawn."""
    drawn = np.random.default_rng(0).integers(count, size=(_RESAMPLES, count))
    values = [function(one) for one in drawn]
    low, high = (float(np.percentile(values, q)) for q in (50 - LEVEL / 2, 50 + LEVEL / 2))
    return low, high


def _firsts(reports: Reports, drafter: str) -> np.ndarray:
    return np.array([one["first"] for one in _of(reports, drafter)["prompts"]])


def gap_is_larger(one: str, other: str, kind: str) -> Decide:
    """The `median` or `mean` gap of a drafter's first trees exceeds that of another one's."""

    def decide(reports: Reports) -> Finding:
        a, b = _firsts(reports, one), _firsts(reports, other)
        centre = np.median if kind == "median" else np.mean

        def difference(chosen: np.ndarray) -> float:
            return float(centre(a[chosen]) - centre(b[chosen]))

        whole = np.arange(len(a))
        label = f"{kind} gap, nats: {one} {centre(a):.2f}, {other} {centre(b):.2f}; difference"
        figure = Figure(label, difference(whole), _resample(difference, len(a)))
        return find([figure], lambda f: above(f, 0.0))

    return decide


def gap_is_larger_on_most(one: str, other: str) -> Decide:
    """The gap of a drafter exceeds that of another one on more than half of the prompts."""

    def decide(reports: Reports) -> Finding:
        larger = (_firsts(reports, one) > _firsts(reports, other)).astype(float)
        bounds = _resample(lambda chosen: float(larger[chosen].mean()), len(larger))
        figure = Figure(f"share of prompts on which {one}'s gap is larger", larger.mean(), bounds)
        return find([figure], lambda f: above(f, 0.5))

    return decide


def faithful_share_is_larger(one: str, other: str) -> Decide:
    """More first trees of a drafter have a gap below 5 nats than of another one."""

    def decide(reports: Reports) -> Finding:
        a, b = (_firsts(reports, name) < 5 for name in (one, other))

        def difference(chosen: np.ndarray) -> float:
            return float(a[chosen].mean() - b[chosen].mean())

        label = f"share below 5 nats: {one} {a.mean():.0%}, {other} {b.mean():.0%}; difference"
        figure = Figure(label, difference(np.arange(len(a))), _resample(difference, len(a)))
        return find([figure], lambda f: above(f, 0.0))

    return decide


def accepted_falls_with_gap(drafters: tuple[str, ...]) -> Decide:
    """Trees of a larger gap accept fewer tokens: each bin with ten trees or more, of all rounds."""

    def decide(reports: Reports) -> Finding:
        verdicts, parts = [], []
        for name in drafters:
            bins = [one for one in _of(reports, name)["rounds"]["bins"] if one["trees"] >= 10]
            means = [one["accepted"] for one in bins]
            steps = [Figure("", x - y) for x, y in zip(means, means[1:], strict=False)]
            verdicts += [above(one, 0.0) for one in steps]
            shown = ", ".join(f"{b['bin']}: {b['accepted']:.2f}" for b in bins)
            parts.append(f"{name} {shown}")
        verdict = combine(verdicts) if verdicts else "not decidable here"
        return Finding(verdict, "; ".join(parts))

    return decide
