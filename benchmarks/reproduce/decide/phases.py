"""Rules over the phases of a round in decode tables: how long methods draft."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.reproduce.claim import Finding, Reports
from benchmarks.reproduce.decide.answers import Answers
from benchmarks.reproduce.decide.rules import Figure, above, below, find
from jaxspec.bench.latency.goals import group_cells, measure_draft_share

Decide = Callable[[Reports], Finding]


def share_is_less(table: str, one: str, other: str, factor: float) -> Decide:
    """The share of drafting of a method is below that of another one times a factor."""

    def decide(reports: Reports) -> Finding:
        answers = Answers(reports[table])
        a, b = answers.share(one), answers.share(other)
        ratio = Figure(f"{one} {a.value:.0%}, {other} {b.value:.0%}: ratio", a.value / b.value)
        return find([ratio], lambda figure: below(figure, factor))

    return decide


def drafting_costs_less(table: str, one: str, other: str, factor: float = 1.0) -> Decide:
    """A method drafts for fewer milliseconds a round than another one times a factor."""

    def decide(reports: Reports) -> Finding:
        records = Answers(reports[table]).records
        a, b = (_draft_ms(records[name]) for name in (one, other))
        label = f"{one} {a:.2g} ms, {other} {b:.2g} ms a round: ratio"
        return find([Figure(label, a / b)], lambda figure: below(figure, factor))

    return decide


def _draft_ms(record) -> float:
    return record["ms_draft"] + record["ms_tree"] + record["ms_absorb"]


def cost_falls_with_block(table: str, drafter: str, blocks: Sequence[int]) -> Decide:
    """What a drafted token costs beside a verification falls nearly as 1/γ: c of the largest block
    over c of the smallest one, times the ratio of their sizes, is below 1.5.
    """

    def decide(reports: Reports) -> Finding:
        records = Answers(reports[table]).records
        costs = []
        for block in blocks:
            one = records[f"{drafter}-chain@{block}/b{block}"]
            costs.append(_draft_ms(one) / ((block - 1) * one["ms_verify"]))
        shown = ", ".join(f"γ = {b - 1}: {c:.3g}" for b, c in zip(blocks, costs, strict=True))
        fallen = costs[-1] / costs[0] * (blocks[-1] - 1) / (blocks[0] - 1)
        figure = Figure("c γ, largest over smallest block", fallen)
        return find([figure], lambda one: below(one, 1.5))._replace(ours=f"c at {shown}; {figure}")

    return decide


def draft_time_is_flat(table: str, drafter: str, blocks: Sequence[int], factor: float) -> Decide:
    """A round of the largest block drafts at most `factor` times as long as one of the smallest."""

    def decide(reports: Reports) -> Finding:
        records = Answers(reports[table]).records
        times = [records[f"{drafter}-chain@{b}/b{b}"]["ms_draft"] for b in blocks]
        shown = ", ".join(f"{b}: {ms:.3g} ms" for b, ms in zip(blocks, times, strict=True))
        figure = Figure("largest over smallest", times[-1] / times[0])
        return find([figure], lambda one: below(one, factor))._replace(ours=f"{shown}; {figure}")

    return decide


def faster_at_equal_acceptance(one: str, other: str) -> Decide:
    """Rounds of a drafter that accept as the paper's give more tokens a second than another one's;
    bounds are quartiles of the samples.
    """

    def decide(reports: Reports) -> Finding:
        a, b = (_forced(reports, name) for name in (one, other))
        bounds = (a["low"] / b["high"], a["high"] / b["low"])
        arch = reports["latency"][one]["settings"]["arch"]
        label = f"{arch}'s shapes: {one} {a['ms']:.3g}, {other} {b['ms']:.3g} ms a round; tokens a second"
        return find([Figure(label, a["speed"] / b["speed"], bounds)], above)

    return decide


def _forced(reports: Reports, name: str) -> dict[str, float]:
    record = next(r for r in reports["latency"][name]["records"] if r["piece"] == "forced")
    low, high = record["quartiles"]
    tokens = record["tokens_per_round"]
    return {
        "ms": record["ms"],
        "speed": tokens / record["ms"],
        "low": tokens / high,
        "high": tokens / low,
    }


def share_is_less_at_equal_shapes(one: str, other: str, factor: float) -> Decide:
    """The share of drafting of a drafter is below that of another one times a factor."""

    def decide(reports: Reports) -> Finding:
        a, b = (_share(reports["latency"][name]) for name in (one, other))
        figure = Figure(f"{one} {a:.0f} %, {other} {b:.0f} %: ratio", a / b)
        return find([figure], lambda f: below(f, factor))

    return decide


def _share(report: Mapping[str, Any]) -> float:
    cells = [cell for *_, cell in group_cells(report["records"])]
    return next(share for cell in cells if (share := measure_draft_share(cell)) is not None)
