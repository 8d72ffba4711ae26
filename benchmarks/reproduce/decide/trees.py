"""Rules over the study of SpecBlock's trees, and of its slots and rank classes on held-out answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.reproduce.claim import Finding, Reports
from benchmarks.reproduce.decide.rules import Figure, above, find, near

Decide = Callable[[Reports], Finding]


def _report(reports: Reports) -> dict[str, Any]:
    return reports["branching"]["report"]


def _way(reports: Reports, what: str, way: str) -> Figure:
    """Return a way's tokens a round over those of the reference, at the largest budget."""
    one = _report(reports)[what]
    rows = [row for row in one["rows"] if row["way"] == way]
    row = max(rows, key=lambda row: row["budget"])
    label = f"{way} / {one['against']}, {row['tokens_per_round']:.2f} tokens a round:"
    return Figure(label, row["ratio"], tuple(row["interval"]))


def way_beats(what: str, way: str, least: float = 1.0) -> Decide:
    """A way accepts more than the reference, or at least a share of it."""
    return lambda reports: find([_way(reports, what, way)], lambda figure: above(figure, least))


def ways_are_alike(what: str, way: str, margin: float) -> Decide:
    """A way accepts as much as the reference, within a margin."""
    return lambda reports: find([_way(reports, what, way)], lambda f: near(f, 1.0, margin))


def first_class_is_most_frequent(least: float) -> Decide:
    """The first rank class has more than a share `least` of the positions."""

    def decide(reports: Reports) -> Finding:
        shares = [one["share"] for one in _report(reports)["ranks"]["classes"]]
        found = find([Figure("", shares[0])], lambda figure: above(figure, least))
        return found._replace(ours="by class " + ", ".join(f"{share:.0%}" for share in shares))

    return decide


def recovers(slots: int) -> Decide:
    """Of chains whose slots so far were right, the first slot of the second block is right more
    often than the last one of the first block.
    """

    def decide(reports: Reports) -> Finding:
        rates = [one["conditional"] for one in _report(reports)["ranks"]["slots"]]
        ratio = Figure("ratio", rates[slots] / rates[slots - 1])
        shown = " ".join(f"{rate:.2f}" for rate in rates[: 2 * slots])
        return find([ratio], above)._replace(ours=f"{shown}; {ratio} at the boundary")

    return decide


def slot_accepts(slot: int, least: float) -> Decide:
    """Of chains whose slots before were right, more than a share have this one right too."""

    def decide(reports: Reports) -> Finding:
        rates = [one["conditional"] for one in _report(reports)["ranks"]["slots"]]
        figure = Figure(f"slot 1 {rates[0]:.2f}, slot {slot}", rates[slot - 1])
        return find([figure], lambda one: above(one, least))

    return decide
