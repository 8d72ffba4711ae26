"""Rules over streams on which drafters learn, by modelled seconds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.adapt.modelled import make_model
from benchmarks.adapt.summarise_adapt import aside_seconds, model_seconds
from benchmarks.reproduce.claim import UNDECIDED, Finding, Reports
from benchmarks.reproduce.decide.rules import Figure, above, find, near
from jaxspec.core.bootstrap import bound_ratio, resample_prompts

Decide = Callable[[Reports], Finding]
Query = dict[str, Any]


def _queries(report: dict[str, Any], arm: str, block: int | None = None) -> list[Query]:
    found = [
        query | {"stratum": f"{run['seed']} {query['block']} {query['domain']}"}
        for run in report["runs"]
        if run["arm"] == arm
        for query in run["queries"]
    ]
    return [one for one in found if block is None or one["block"] == block]


def _clock(report: dict[str, Any], two_devices: bool = False) -> Callable[[Query], float]:
    model = make_model(report["model"]["architecture"], report["model"]["device"])
    return aside_seconds(model) if two_devices else model_seconds(model)


def _speed(
    label: str,
    one: Sequence[Query],
    other: Sequence[Query],
    clock: Callable[[Query], float],
    clock_of_other: Callable[[Query], float] | None = None,
) -> Figure:
    """Divide speeds on the same queries, resampled within domains, blocks and seeds."""
    own, base = (np.array([query["tokens"] for query in x], float) for x in (one, other))
    seconds = np.array([clock(query) for query in one])
    others = np.array([(clock_of_other or clock)(query) for query in other])
    drawn = resample_prompts([query["stratum"] for query in one])
    value = own.sum() * others.sum() / (seconds.sum() * base.sum())
    bounds = bound_ratio(drawn, (own, others), (seconds, base))
    return Figure(label, float(value), bounds and tuple(bounds))


def _if_it_learns(stream: str, arm: str, decide: Decide) -> Decide:
    """Leave a claim about a rule undecided that published no version: its stream was too short."""

    def check(reports: Reports) -> Finding:
        queries = _queries(reports[stream]["report"], arm)
        if any(query["version"] for query in queries):
            return decide(reports)
        return Finding(UNDECIDED, f"{arm} made no update in {len(queries)} queries of {stream}")

    return check


def learns_faster(stream: str, arm: str, other: str) -> Decide:
    """A rule of updates is faster than another one on a stream."""

    def decide(reports: Reports) -> Finding:
        report = reports[stream]["report"]
        pair = [_queries(report, name) for name in (arm, other)]
        return find([_speed(f"{arm} / {other}", *pair, _clock(report))], above)

    return _if_it_learns(stream, arm, decide)


def two_devices_gain_little(stream: str, arm: str, margin: float) -> Decide:
    """A second device that trains makes a rule faster by less than a margin."""

    def decide(reports: Reports) -> Finding:
        report = reports[stream]["report"]
        own = _queries(report, arm)
        clocks = _clock(report, two_devices=True), _clock(report)
        figure = _speed(f"{arm}: two devices / one", own, own, *clocks)
        return find([figure], lambda f: near(f, 1.0, margin))

    return _if_it_learns(stream, arm, decide)


def gain_grows(stream: str, arm: str) -> Decide:
    """Beside never updating, a rule's tokens a round gain more in the last pass than in the first."""

    def parts(queries: Sequence[Query]) -> tuple[list[Query], list[Query]]:
        last = max(query["block"] for query in queries)
        found = [[one for one in queries if one["block"] == block] for block in (0, last)]
        return found[0], found[1]

    return _gain_grows(stream, arm, parts)


def gain_grows_within(stream: str, arm: str) -> Decide:
    """They gain more in the second half of each block than in the first one."""

    def parts(queries: Sequence[Query]) -> tuple[list[Query], list[Query]]:
        places: dict[str, list[Query]] = {}
        for one in queries:
            places.setdefault(one["stratum"], []).append(one)
        halves = [(own[: len(own) // 2], own[-(len(own) // 2) :]) for own in places.values()]
        return [q for a, _ in halves for q in a], [q for _, b in halves for q in b]

    return _gain_grows(stream, arm, parts)


def _gain_grows(stream: str, arm: str, parts: Callable) -> Decide:
    """A rule's gain over never updating is larger in the second of two parts of the queries, which
    have equal strata.
    """

    def decide(reports: Reports) -> Finding:
        report = reports[stream]["report"]
        own, never = (parts(_queries(report, name)) for name in (arm, "never"))
        (a, b), (c, d), (e, f), (g, h) = (
            [np.array([q[key] for q in side[part]], float) for key in ("tokens", "rounds")]
            for part in (1, 0)
            for side in (own, never)
        )
        # Of the later part: arm over never; divided by the same of the first one.
        over, under = (a, d, f, g), (b, c, e, h)
        value = np.prod([x.sum() for x in over]) / np.prod([x.sum() for x in under])
        seeds = [f"{query['stratum'].split()[0]} {query['domain']}" for query in own[1]]
        bounds = bound_ratio(resample_prompts(seeds), over, under)
        gains = [
            x.sum() * w.sum() / (z.sum() * y.sum()) for x, z, y, w in ((e, f, g, h), (a, b, c, d))
        ]
        label = f"{arm} over never, first {gains[0]:.3f}, later {gains[1]:.3f}: ratio"
        return find([Figure(label, float(value), bounds and tuple(bounds))], above)

    return _if_it_learns(stream, arm, decide)


def gains_more_than(stream: str, other: str, arm: str) -> Decide:
    """A rule gains more over never updating on one stream than on another one."""

    def decide(reports: Reports) -> Finding:
        figures = []
        for name in (stream, other):
            report = reports[name]["report"]
            pair = [_queries(report, one) for one in (arm, "never")]
            figures.append(_speed(f"{name}: {arm} / never", *pair, _clock(report)))
        a, b = figures
        bounds = None
        if a.interval and b.interval:
            bounds = (a.interval[0] / b.interval[1], a.interval[1] / b.interval[0])
        ratio = Figure("ratio", a.value / b.value, bounds)
        return find([ratio], above)._replace(ours=f"{a}; {b}; {ratio}")

    return _if_it_learns(stream, arm, _if_it_learns(other, arm, decide))


def head_is_cheaper(least: float) -> Decide:
    """A step of all weights takes at least so many times as long as one of the head."""

    def decide(reports: Reports) -> Finding:
        parts = reports["updates"]["report"]["parts"]
        head, full = (1e3 * parts[name]["seconds"] for name in ("head", "full"))
        figure = Figure(f"full {full:.0f} ms, head {head:.0f} ms: ratio", full / head)
        return find([figure], lambda f: above(f, least))

    return decide
