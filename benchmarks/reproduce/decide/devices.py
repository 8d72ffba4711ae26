"""Rules over figures of the roofline: engines of many slots, rounds at published sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.adapt.modelled import make_model
from benchmarks.reproduce.claim import CONFIRMED, REFUTED, Finding, Reports
from benchmarks.reproduce.decide.rules import Figure, above, below, combine, find
from jaxspec.costs.roofline import DEVICES

Decide = Callable[[Reports], Finding]


def _speeds(reports: Reports, name: str) -> dict[int, dict[str, float]]:
    """Collect tokens a second by slots and rule."""
    found: dict[int, dict[str, float]] = {}
    for one in reports[name]["report"]["records"]:
        found.setdefault(one["slots"], {})[one["rule"]] = one["tokens_per_second"]
    return found


def best_fixed(speeds: dict[str, float]) -> int:
    """Return the fixed budget with the most tokens a second."""
    fixed = {rule: speed for rule, speed in speeds.items() if rule.startswith("fixed ")}
    return int(max(fixed, key=fixed.get).removeprefix("fixed "))  # type: ignore[arg-type]


def _show(best: dict[Any, int]) -> str:
    return "best fixed rows: " + ", ".join(f"{key}: {rows}" for key, rows in best.items())


def best_budget_falls(name: str) -> Decide:
    """The best fixed budget never rises with the number of slots, and falls."""

    def decide(reports: Reports) -> Finding:
        best = {f"{n} slots": best_fixed(one) for n, one in sorted(_speeds(reports, name).items())}
        rows = list(best.values())
        falls = rows == sorted(rows, reverse=True) and rows[-1] < rows[0]
        return Finding(CONFIRMED if falls else REFUTED, _show(best))

    return decide


def large_budget_is_best(name: str, slots: int) -> Decide:
    """The largest fixed budget is the best one for some slots."""

    def decide(reports: Reports) -> Finding:
        speeds = _speeds(reports, name)[slots]
        rows = max(int(rule[6:]) for rule in speeds if rule.startswith("fixed "))
        others = [
            s for rule, s in speeds.items() if rule not in (f"fixed {rows}", "equal", "global")
        ]
        ratio = Figure(
            f"{rows} rows over the next best, {slots} slots", speeds[f"fixed {rows}"] / max(others)
        )
        return find([ratio], above)

    return decide


def faster_than_plain(name: str, slots: int, rule: str = "") -> Decide:
    """A rule, or the largest fixed budget, is faster than plain decoding for some slots."""

    def decide(reports: Reports) -> Finding:
        speeds = _speeds(reports, name)[slots]
        rows = max(int(one[6:]) for one in speeds if one.startswith("fixed "))
        chosen = rule or f"fixed {rows}"
        ratio = Figure(f"{chosen} / plain, {slots} slots", speeds[chosen] / speeds["ar"])
        return find([ratio], above)

    return decide


def best_budget_differs(names: dict[str, str], slots: tuple[int, ...]) -> Decide:
    """The best fixed budget differs between devices or targets, for some number of slots."""

    def decide(reports: Reports) -> Finding:
        best, differs = {}, False
        for number in slots:
            own = {
                f"{label}, {number} slots": best_fixed(_speeds(reports, name)[number])
                for label, name in names.items()
            }
            best |= own
            differs |= len(set(own.values())) > 1
        return Finding(CONFIRMED if differs else REFUTED, _show(best))

    return decide


def drafting_share_falls(small: str, large: str, device: str) -> Decide:
    """A pass of the drafter, one layer of its target's sizes, a fusion and a head, takes less beside a
    verification if the target is larger: both read their weights.

    Args:
      small, large: names of the plans, which are those of the targets.
      device: of the plans.
    """

    def decide(reports: Reports) -> Finding:
        rounds = [reports["plans"][name][0]["round"] for name in (small, large)]
        passes = [2 * make_model(name, device).drafter / rate for name in (small, large)]
        shares = [one / whole for one, whole in zip(passes, rounds, strict=True)]
        shown = f"{small} {shares[0]:.1%}, {large} {shares[1]:.1%} of a verification"
        ratio = Figure("ratio", shares[1] / shares[0])
        return find([ratio], below)._replace(ours=f"one pass: {shown}; {ratio}, by the roofline")

    rate = DEVICES[device].bandwidth
    return decide


def all_of(*rules: Decide) -> Decide:
    """Several rules hold together."""

    def decide(reports: Reports) -> Finding:
        found = [rule(reports) for rule in rules]
        return Finding(
            combine([one.verdict for one in found]), "; ".join(one.ours for one in found)
        )

    return decide
