"""Rules over the phases of a round in decode tables: how long methods draft."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchmarks.reproduce.claim import Finding, Reports
from benchmarks.reproduce.decide.answers import Answers
from benchmarks.reproduce.decide.rules import Figure, below, find

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
