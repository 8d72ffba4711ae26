"""Rules over Learning to Draft's policies, by modelled time and by the clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.reproduce.claim import CONFIRMED, REFUTED, UNDECIDED, Finding, Reports
from benchmarks.reproduce.decide.rules import Figure, above, below, combine, find, near

Decide = Callable[[Reports], Finding]


def _over(label: str, pair: Any) -> Figure:
    value, bounds = pair
    return Figure(label, value, bounds and tuple(bounds))


def _seeds(one: dict[str, Any]) -> str:
    return "seeds " + " ".join(f"{ratio:.3f}" for ratio in one["each"])


def over_static(name: str, way: str) -> Decide:
    """A trained policy is faster than the best constant, by modelled time."""

    def decide(reports: Reports) -> Finding:
        one = reports[name]["report"][way]
        found = find([_over(f"{way} / grid search, modelled", one["over_static"])], above)
        return found._replace(ours=f"{found.ours}; {_seeds(one)}")

    return decide


def first_beats(name: str, way: str) -> Decide:
    """The first way of a comparison is faster than another one, by modelled time."""

    def decide(reports: Reports) -> Finding:
        report = reports[name]["report"]
        first = next(key for key in report if key not in ("static", "oracle"))
        found = find([_over(f"{way} / {first}, modelled", report[way]["over_first"])], below)
        return found._replace(ours=f"{found.ours}; {_seeds(report[way])}")

    return decide


def way_beats(name: str, one: str, other: str) -> Decide:
    """A way is faster than another one; intervals are of both against the first way."""

    def decide(reports: Reports) -> Finding:
        report = reports[name]["report"]
        a, b = (_over(way, report[way]["over_static"]) for way in (one, other))
        ratio = Figure(f"{one} / {other}, modelled", a.value / b.value, _spread(report, one, other))
        return find([ratio], above)._replace(
            ours=f"{ratio}; {_seeds(report[one])}; {_seeds(report[other])}"
        )

    return decide


def _spread(report: dict[str, Any], one: str, other: str) -> tuple[float, float]:
    """Bound the ratio of two ways by the extremes of their seeds, paired."""
    ratios = [a / b for a, b in zip(report[one]["each"], report[other]["each"], strict=True)]
    return min(ratios), max(ratios)


def alike(name: str, one: str, other: str, margin: float) -> Decide:
    """Two ways are as fast, within a margin."""

    def decide(reports: Reports) -> Finding:
        report = reports[name]["report"]
        value = report[one]["over_static"][0] / report[other]["over_static"][0]
        figure = Figure(f"{one} / {other}, modelled", value, _spread(report, one, other))
        return find([figure], lambda f: near(f, 1.0, margin))

    return decide


def _clock(reports: Reports, name: str, clock: str = "whole") -> dict[str, dict[str, Any]]:
    rows = reports[name]["report"]["temperatures"][0]["results"]
    return {r["method"]: r for r in rows if (r["domain"], r["clock"]) == ("all", clock)}


def _trained(records: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    return [one for method, one in records.items() if method.startswith("ltd-")]


def faster_by_the_clock(name: str) -> Decide:
    """Every trained policy is faster than the best constant, by the clock."""

    def decide(reports: Reports) -> Finding:
        found = [
            Figure(one["method"], one["against"], tuple(one["against_ci"]))
            for one in _trained(_clock(reports, name))
        ]
        return find(found, above)

    return decide


def constant_beats_rules(name: str, rules: tuple[str, ...]) -> Decide:
    """The best constant is faster than every rule without training, by the clock."""

    def decide(reports: Reports) -> Finding:
        records = _clock(reports, name)
        found = [
            Figure(
                f"{rule} / grid search",
                records[rule]["against"],
                tuple(records[rule]["against_ci"]),
            )
            for rule in rules
        ]
        return find(found, below)

    return decide


def fastest(name: str) -> Decide:
    """A trained policy is the fastest of all, plain decoding included."""

    def decide(reports: Reports) -> Finding:
        records = _clock(reports, name)
        best = max(records.values(), key=lambda one: one["speedup"])
        trained = max(_trained(records), key=lambda one: one["speedup"])
        shown = (
            f"best {best['method']} {best['speedup']:.2f}, best trained {trained['speedup']:.2f}"
        )
        if best is trained:
            return Finding(CONFIRMED, shown)
        apart = trained["speedup_ci"][1] < best["speedup_ci"][0]
        return Finding(REFUTED if apart else UNDECIDED, shown)

    return decide


def overhead_below(name: str, most: float) -> Decide:
    """The policies' own share of the time is small, by the clock."""

    def decide(reports: Reports) -> Finding:
        shares = [one["own_share"] for one in _trained(_clock(reports, name))]
        figure = Figure(
            "own share of the time", sum(shares) / len(shares), (min(shares), max(shares))
        )
        return find([figure], lambda f: below(f, most))

    return decide


def faster_with_fewer_tokens(name: str, way: str) -> Decide:
    """A way is faster than the best constant and commits no more tokens a round."""

    def decide(reports: Reports) -> Finding:
        report = reports[name]["report"]
        own, static = report[way], report["static"]
        fewer = Figure("tokens a round", own["acceptance_length"] / static["acceptance_length"])
        faster = _over("speed", own["over_static"])
        verdict = combine([above(faster), below(fewer, 1.0 + 1e-9)])
        return Finding(verdict, f"{faster}; {fewer}, over grid search")

    return decide


def part_falls(name: str, way: str, part: str) -> Decide:
    """A way takes fewer modelled milliseconds a token than the best constant, of `draft_ms` or of
    `verify_ms`.
    """

    def decide(reports: Reports) -> Finding:
        rounds = reports[name]["rounds"]
        own, static = (rounds[key][part] for key in (way, "static"))
        label = (
            f"{part.removesuffix('_ms')}ing, ms a token: {own:.3g}, constant {static:.3g}; ratio"
        )
        return find([Figure(label, own / static)], below)

    return decide


def _sides(reports: Reports, name: str, way: str) -> tuple[dict[str, float], dict[str, float]]:
    """Return the figures of hard and easy rounds, by the tokens that they committed."""
    sides = reports[name]["rounds"][way]["rounds"]["committed"]
    return sides["hard"], sides["easy"]


def easy_exceeds_hard(name: str, way: str, what: str) -> Decide:
    """Easy rounds have more `steps` or `rows` than hard ones."""

    def decide(reports: Reports) -> Finding:
        hard, easy = _sides(reports, name, way)
        label = f"{what}: easy {easy[what]:.1f}, hard {hard[what]:.1f}; ratio"
        return find([Figure(label, easy[what] / hard[what])], above)

    return decide


def hard_rounds_are(name: str, way: str, what: str, least: float) -> Decide:
    """More than a share of the hard rounds have `few_steps` or `many_rows`."""

    def decide(reports: Reports) -> Finding:
        hard, easy = _sides(reports, name, way)
        figure = Figure(f"{what.replace('_', ' ')}: easy {easy[what]:.0%}, hard", hard[what])
        return find([figure], lambda f: above(f, least))

    return decide


def faster_on_most(name: str, way: str, least: float) -> Decide:
    """A way is faster than the best constant in at least a share of the domains."""

    def decide(reports: Reports) -> Finding:
        ratios = reports[name]["report"][way]["domains"]
        faster = sum(ratio > 1 for ratio in ratios.values())
        shown = ", ".join(f"{domain} {ratio:.3f}" for domain, ratio in ratios.items())
        found = find([Figure("", faster / len(ratios))], lambda f: above(f, least - 1e-9))
        return found._replace(ours=f"{faster} of {len(ratios)} domains: {shown}")

    return decide
