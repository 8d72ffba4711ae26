"""Compare the tokens a round of drafters and trees on the same prompts, with paired intervals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from benchmarks.training.recipes import REFERENCE
from jaxspec.bench.report.table import with_interval
from jaxspec.core.bootstrap import LEVEL, resample_prompts


class _Measured(NamedTuple):
    """Tokens per round of one label and method, mean of domains and seeds.

    Attributes:
      value: over all prompts.
      drawn: float [resamples], over resampled prompts.
    """

    value: float
    drawn: np.ndarray


def paired_tables(
    results: Sequence[dict[str, Any]], label: Callable[[dict[str, Any]], str]
) -> list[str]:
    """Make a table per temperature of how many tokens a round the reference has per one of others.

    The reference is the lattice tree of DSpark with as many rows; chains are compared with every
    number of rows. Prompts are resampled within their domains, the same ones for both sides, and
    all seeds of a recipe are averaged: intervals tell how prompts differ, not how seeds do.

    Args:
      results: from `benchmarks.training.sweep.run_recipe`, with `counts`.
      label: recipe -> its name in the table; equal ones differ in their seeds.

    Returns:
      Lines of Markdown, none without the reference.
    """
    measured = _measure(results, label)
    lines = []
    for temperature in dict.fromkeys(key[2] for key in measured):
        rows = _rows({key[:2]: one for key, one in measured.items() if key[2] == temperature})
        if rows:
            title = f"Tokens a round of {REFERENCE[0]}'s {REFERENCE[1]} over others', "
            lines += ["", title + (temperature or "T=0"), "", *rows]
    return lines


def _measure(
    results: Sequence[dict[str, Any]], label: Callable[[dict[str, Any]], str]
) -> dict[tuple[str, str, str], _Measured]:
    """Pool the counts of all seeds.

    Returns:
      {(label, method with its rows, temperature or ""): figures}.
    """
    seeds: dict[tuple[str, str, str], list[tuple[np.ndarray, np.ndarray]]] = {}
    domains: list[str] = []
    for result in results:
        for name, by_domain in result.get("counts", {}).items():
            method, _, temperature = name.partition(", ")
            pairs = np.array([pair for found in by_domain.values() for pair in found])
            domains = [domain for domain, found in by_domain.items() for _ in found]
            key = (label(result["recipe"]), method, temperature)
            seeds.setdefault(key, []).append((pairs[:, 0], pairs[:, 1]))
    if not seeds:
        return {}
    drawn = np.concatenate([np.ones((1, len(domains)), np.int64), resample_prompts(domains)])
    found = {}
    for key, counts in seeds.items():
        means = np.mean([_tokens_per_round(drawn, domains, *pair) for pair in counts], axis=0)
        found[key] = _Measured(float(means[0]), means[1:])
    return found


def _tokens_per_round(
    drawn: np.ndarray, domains: Sequence[str], tokens: np.ndarray, rounds: np.ndarray
) -> np.ndarray:
    """Compute tokens per round, the mean of the domains, for each row of `drawn` int [R, P]."""
    of = [np.array(domains) == domain for domain in dict.fromkeys(domains)]
    return np.mean(
        [(drawn[:, at] @ tokens[at]) / np.maximum(drawn[:, at] @ rounds[at], 1) for at in of],
        axis=0,
    )


def _rows(measured: dict[tuple[str, str], _Measured]) -> list[str]:
    """Make the lines of one temperature's table: a column per number of rows."""
    name, tree = REFERENCE
    reference = {
        method.partition("@")[2]: one
        for (label, method), one in measured.items()
        if (label, method.partition("@")[0]) == (name, tree)
    }
    if not reference:
        return []
    show = with_interval()
    own = " | ".join(f"{one.value:.2f}" for one in reference.values())
    lines = [
        f"| | tree | {' | '.join(f'{rows} rows' for rows in reference)} |",
        "| --- " * (len(reference) + 2) + "|",
        f"| {name} | {tree} (tokens a round) | {own} |",
    ]
    others: dict[tuple[str, str], dict[str, _Measured]] = {}
    for (label, method), one in measured.items():
        kind, _, rows = method.partition("@")
        others.setdefault((label, kind), {})[rows] = one
    others.pop(REFERENCE)
    for (label, kind), by_rows in others.items():
        if kind == "chain":  # It has one number of rows, and stands beside every tree.
            by_rows = dict.fromkeys(reference, *by_rows.values())
        cells = [
            show(_ratio(best, by_rows[rows])) if rows in by_rows else "–"
            for rows, best in reference.items()
        ]
        lines.append(f"| {label} | {kind} | {' | '.join(cells)} |")
    return lines


def _ratio(one: _Measured, other: _Measured) -> tuple[float, list[float]]:
    """Divide two figures; the bounds hold 95 % of the ratios on resampled prompts."""
    ratios = one.drawn / other.drawn
    bounds = [float(np.percentile(ratios, q)) for q in (50 - LEVEL / 2, 50 + LEVEL / 2)]
    return one.value / other.value, bounds
