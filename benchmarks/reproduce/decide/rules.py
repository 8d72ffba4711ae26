"""The rules under all others: an interval against a bound, and several verdicts as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from benchmarks.reproduce.claim import CONFIRMED, MIXED, REFUTED, UNDECIDED, Finding

# Two figures whose ratio is within this share of 1 count as equal.
MARGIN = 0.05


class Figure(NamedTuple):
    """A measured figure.

    Attributes:
      label: what it is, in a few words.
      value: itself.
      interval: its 95 % interval; None if it is exact, or nothing was resampled.
    """

    label: str
    value: float
    interval: tuple[float, float] | None = None

    def __str__(self) -> str:
        bounds = "" if self.interval is None else " [{:.3g}, {:.3g}]".format(*self.interval)
        return f"{self.label} {self.value:.3g}{bounds}".strip()


def above(figure: Figure, bound: float = 1.0) -> str:
    """Return whether a figure is above a bound: confirmed, refuted, or not decidable."""
    low, high = figure.interval or (figure.value, figure.value)
    if low > bound:
        return CONFIRMED
    return REFUTED if high < bound or (figure.interval is None) else UNDECIDED


def below(figure: Figure, bound: float = 1.0) -> str:
    """Return whether a figure is below a bound."""
    low, high = figure.interval or (figure.value, figure.value)
    if high < bound:
        return CONFIRMED
    return REFUTED if low > bound or figure.interval is None else UNDECIDED


def near(figure: Figure, target: float = 1.0, margin: float = MARGIN) -> str:
    """Return whether a figure is near a target: its whole interval, within a margin."""
    low, high = figure.interval or (figure.value, figure.value)
    if target - margin <= low and high <= target + margin:
        return CONFIRMED
    return REFUTED if high < target - margin or low > target + margin else UNDECIDED


def between(low: float, high: float) -> Callable[[Figure], str]:
    """Make the rule that a figure lies between two bounds."""
    return lambda figure: near(figure, (low + high) / 2, (high - low) / 2)


def combine(verdicts: Sequence[str]) -> str:
    """Return one verdict for several: theirs if they agree, else mixed.

    Raises:
      ValueError: there is none.
    """
    if not verdicts:
        raise ValueError("there is nothing to decide: no figure was measured")
    found = set(verdicts)
    return found.pop() if len(found) == 1 else MIXED


def find(figures: Sequence[Figure], rule: Callable[[Figure], str]) -> Finding:
    """Judge every figure by a rule, and make the finding of all of them."""
    verdict = combine([rule(figure) for figure in figures])
    only = figures[0] if len(figures) == 1 else None
    ours = "; ".join(map(str, figures))
    return Finding(verdict, ours, only and only.value, only and only.interval)


def ordered(figures: Sequence[Figure], ratios: Sequence[Figure]) -> Finding:
    """Judge an order of figures, the largest first, by the ratio of each to the next one."""
    verdict = combine([above(ratio) for ratio in ratios])
    return Finding(verdict, " > ".join(f"{one.label} {one.value:.3g}" for one in figures))
