"""Rules over drafters that several recipes trained, with intervals over prompts and seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.reproduce.claim import Finding, Reports
from benchmarks.reproduce.decide.rules import Figure, above, below, find, near
from jaxspec.core.bootstrap import LEVEL, resample_prompts

Decide = Callable[[Reports], Finding]
Choose = Callable[[dict[str, Any]], bool]


def recipe(**wanted: Any) -> Choose:
    """Make the test that a run's recipe has these values."""
    return lambda run: all(run["recipe"][name] == value for name, value in wanted.items())


def compare(reports: Reports, name: str, method: str, one: Choose, other: Choose) -> Figure:
    """Divide the tokens a round of two recipes under a method, domains weighing alike.

    Prompts are resampled within their domains, the same ones for both sides, and so are the seeds
    that both have.
    """
    runs = list(reports[name].values())
    sides = [{r["recipe"]["seed"]: r for r in runs if choose(r)} for choose in (one, other)]
    seeds = sorted(set(sides[0]) & set(sides[1]))
    if not seeds:
        raise ValueError(f"{name}: no seed has both recipes")
    tables = [[side[seed]["counts"][method] for seed in seeds] for side in sides]
    domains = [domain for domain, found in tables[0][0].items() for _ in found]
    drawn = np.concatenate([np.ones((1, len(domains)), int), resample_prompts(domains)])
    chosen = np.random.default_rng(0).multinomial(
        len(seeds), np.full(len(seeds), 1 / len(seeds)), size=len(drawn)
    )
    chosen[0] = 1
    lengths = [
        np.stack([_length(table, domains, drawn) for table in side], axis=1) for side in tables
    ]
    ratios = (lengths[0] * chosen).sum(1) / (lengths[1] * chosen).sum(1)
    low, high = (float(np.percentile(ratios[1:], q)) for q in (50 - LEVEL / 2, 50 + LEVEL / 2))
    means = [float(x[0].mean()) for x in lengths]
    label = f"{method}: {means[0]:.2f} / {means[1]:.2f}, {len(seeds)} seeds,"
    return Figure(label, float(ratios[0]), (low, high))


def _length(table: dict[str, list], domains: list[str], drawn: np.ndarray) -> np.ndarray:
    """Compute tokens a round, the mean of the domains, for each row of `drawn` [R, P]: [R]."""
    pairs = np.array([pair for found in table.values() for pair in found], float)
    of = [np.array(domains) == domain for domain in dict.fromkeys(domains)]
    lengths = [(drawn[:, at] @ pairs[at, 0]) / (drawn[:, at] @ pairs[at, 1]) for at in of]
    return np.mean(lengths, axis=0)


def trained_better(name: str, one: Choose, other: Choose, *methods: str) -> Decide:
    """A recipe gives more tokens a round than another one, with every method."""
    return lambda reports: find(
        [compare(reports, name, method, one, other) for method in methods], above
    )


def trained_alike(name: str, one: Choose, other: Choose, margin: float, *methods: str) -> Decide:
    """Two recipes give as many tokens a round, within a margin."""
    return lambda reports: find(
        [compare(reports, name, method, one, other) for method in methods],
        lambda figure: near(figure, 1.0, margin),
    )


def plateau(name: str, rates: Sequence[Choose], margin: float, method: str) -> Decide:
    """The best of some recipes and the ones beside it are alike, within a margin."""

    def decide(reports: Reports) -> Finding:
        best = max(
            range(len(rates)),
            key=lambda k: compare(reports, name, method, rates[k], rates[0]).value,
        )
        beside = [k for k in (best - 1, best + 1) if 0 <= k < len(rates)]
        figures = [compare(reports, name, method, rates[k], rates[best]) for k in beside]
        found = find(figures, lambda figure: near(figure, 1.0, margin))
        return found._replace(ours=f"best is number {best + 1} of {len(rates)}; {found.ours}")

    return decide


def collapses(name: str, one: Choose, other: Choose, most: float, *methods: str) -> Decide:
    """A recipe has less than a share `most` of the tokens a round of another one."""
    return lambda reports: find(
        [compare(reports, name, method, one, other) for method in methods],
        lambda figure: below(figure, most),
    )


def extremes_are_easiest(name: str, choose: Choose) -> Decide:
    """On held-out answers the F1 of the rank head's first and last class exceeds that of both
    classes between, in every seed.
    """

    def decide(reports: Reports) -> Finding:
        runs = [run["held_out"]["classes"] for run in reports[name].values() if choose(run)]
        scores = np.array([[one["f1"] or 0.0 for one in classes] for classes in runs])
        gaps = scores[:, [0, 3]].min(1) - scores[:, [1, 2]].max(1)
        found = find([Figure("", float(gap)) for gap in gaps], lambda f: above(f, 0.0))
        shown = " ".join(f"{x:.2f}" for x in scores.mean(0))
        return Finding(found.verdict, f"F1 by class {shown}, {len(scores)} seeds")

    return decide
