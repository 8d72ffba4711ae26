"""Rules over decode tables: which method is faster, accepts more, or drafts for longer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from benchmarks.reproduce.claim import MIXED, REFUTED, Finding, Reports
from benchmarks.reproduce.decide.answers import Answers
from benchmarks.reproduce.decide.rules import (
    Figure,
    above,
    below,
    combine,
    find,
    near,
    ordered,
)

Decide = Callable[[Reports], Finding]


def faster(table: str, one: str, other: str) -> Decide:
    """A method has more tokens a second than another one."""
    return lambda reports: find([Answers(reports[table]).speed(one, other)], above)


def accepts_more(table: str, one: str, other: str, bound: float = 1.0) -> Decide:
    """A method has more tokens a round than another one, by a factor above `bound`."""
    return lambda reports: find(
        [Answers(reports[table]).acceptance(one, other)], lambda figure: above(figure, bound)
    )


def accepts_alike(table: str, pairs: Sequence[tuple[str, str]], margin: float) -> Decide:
    """Methods have as many tokens a round as their partners, within a margin."""

    def decide(reports: Reports) -> Finding:
        answers = Answers(reports[table])
        figures = [answers.acceptance(*pair) for pair in pairs]
        return find(figures, lambda figure: near(figure, 1.0, margin))

    return decide


def all_below(table: str, pairs: Sequence[tuple[str, str]], bound: float) -> Decide:
    """Methods have fewer tokens a round than their partners, by a factor below `bound`."""

    def decide(reports: Reports) -> Finding:
        answers = Answers(reports[table])
        figures = [answers.acceptance(*pair) for pair in pairs]
        return find(figures, lambda figure: below(figure, bound))

    return decide


def accepts_in_order(table: str, methods: Sequence[str]) -> Decide:
    """Methods, the best first, are in this order by tokens a round."""

    def decide(reports: Reports) -> Finding:
        answers = Answers(reports[table])
        ratios = [answers.acceptance(*pair) for pair in pairwise(methods)]
        return ordered([answers.length(name) for name in methods], ratios)

    return decide


def faster_in_order(table: str, methods: Sequence[str]) -> Decide:
    """Methods, the best first, are in this order by tokens a second."""

    def decide(reports: Reports) -> Finding:
        answers = Answers(reports[table])
        ratios = [answers.speed(*pair) for pair in pairwise(methods)]
        return ordered([answers.speedup(name) for name in methods], ratios)

    return decide


def survives(greedy: str, sampled: str, one: str, other: str, speed: bool = True) -> Decide:
    """A method is still ahead of another one at temperature 1."""

    def decide(reports: Reports) -> Finding:
        def ratio(table: str) -> Figure:
            answers = Answers(reports[table])
            found = answers.speed(one, other) if speed else answers.acceptance(one, other)
            return found._replace(label=f"T = {1 if table == sampled else 0}: {found.label}")

        at = ratio(sampled)
        return find([at], above)._replace(ours=f"{at}; {ratio(greedy)}")

    return decide


def lower_when_sampled(greedy: str, sampled: str, methods: Sequence[str]) -> Decide:
    """Every method has fewer tokens a round at temperature 1, and their order stays.

    The two tables have the same prompts, but other texts; the intervals must not meet.
    """

    def decide(reports: Reports) -> Finding:
        tables = [Answers(reports[name]) for name in (greedy, sampled)]
        verdicts, parts = [], []
        for name in methods:
            before, after = (table.length(name) for table in tables)
            fallen = after.interval and before.interval and after.interval[1] < before.interval[0]
            verdicts.append("confirmed" if fallen else above(before, after.value))
            parts.append(f"{name} {before.value:.2f} to {after.value:.2f}")
        orders = [sorted(methods, key=lambda name: -t.length(name).value) for t in tables]
        verdict = combine(verdicts)
        if verdict != REFUTED and orders[0] != orders[1]:
            verdict, parts = MIXED, [*parts, "in another order"]
        return Finding(verdict, "; ".join(parts))

    return decide


def gains_with_budget(table: str, one: str, other: str, budgets: Callable) -> Decide:
    """The ratio of two methods' tokens a round is above 1 at the largest budget, and larger there
    than at the smallest one; names have `{}` for the rows.
    """

    def decide(reports: Reports) -> Finding:
        answers = Answers(reports[table])
        rows = budgets(answers)
        first, last = (
            answers.acceptance(one.format(n), other.format(n)) for n in (rows[0], rows[-1])
        )
        grown = Figure(f"{rows[-1]} over {rows[0]} rows", last.value / first.value)
        low, high = last.interval or (last.value,) * 2
        before = first.interval or (first.value,) * 2
        grown = grown._replace(interval=(low / before[1], high / before[0]))
        return find([grown], above)._replace(ours=f"{first}; {last}; {grown}")

    return decide


def measured_rows(start: str) -> Callable[[Answers], list[int]]:
    """Make the function that lists the budgets of a method, named by what is before its `@`."""

    def rows(answers: Answers) -> list[int]:
        own = [name for name in answers.records if name.startswith(f"{start}@")]
        return sorted({int(name.partition("@")[2].partition("/")[0]) for name in own})

    return rows


def at_largest(table: str, one: str, other: str, start: str, speed: bool = False) -> Decide:
    """A method beats another one at the largest budget that was measured."""

    def decide(reports: Reports) -> Finding:
        answers = Answers(reports[table])
        rows = measured_rows(start)(answers)[-1]
        compare = answers.speed if speed else answers.acceptance
        return find([compare(one.format(rows), other.format(rows))], above)

    return decide


def rises_with_budget(table: str, method: str, start: str) -> Decide:
    """A method has more tokens a second with every larger budget."""

    def decide(reports: Reports) -> Finding:
        answers = Answers(reports[table])
        names = [method.format(n) for n in reversed(measured_rows(start)(answers))]
        ratios = [answers.speed(*pair) for pair in pairwise(names)]
        return ordered([answers.speedup(name) for name in names], ratios)

    return decide
