"""Compare the tokens a round of all methods with those of one, on the same prompts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxspec.bench.measure.decodes import Run
from jaxspec.bench.report.definitions import divide
from jaxspec.bench.report.summary import each_domain
from jaxspec.core.bootstrap import bound_ratio
from jaxspec.io.text.prompt_files import LabelledPrompt

_ROWS = re.compile(r"@\d+")


def find_partners(methods: Sequence[str], against: str) -> dict[str, str]:
    """Find the method that each one is compared with.

    Args:
      methods: names of the methods that are measured.
      against: one of them, or a name without its `@ROWS`: each method is then compared with the one
        of as many rows, and left out if there is none.

    Returns:
      {method: the other's name}; no method is compared with itself.

    Raises:
      ValueError: `against` is none of the methods, with any number of rows.
    """
    if against in methods:
        return {name: against for name in methods if name != against}
    by_rows = {_rows_of(name): name for name in methods if _ROWS.sub("", name) == against}
    if not by_rows:
        raise ValueError(
            f"nothing to compare with: {against!r} is none of the methods {', '.join(methods)}; "
            "add it to them"
        )
    partners = {name: by_rows.get(_rows_of(name)) for name in methods}
    return {name: other for name, other in partners.items() if other and other != name}


def add_ratios(
    records: Sequence[dict[str, Any]],
    kept: Mapping[float, tuple[Sequence[LabelledPrompt], Sequence[Run]]],
    partners: Mapping[str, str],
) -> list[dict[str, Any]]:
    """Add the figures of `compare_rounds` to records of `jaxspec.bench.benchmark`.

    Args:
      kept: {temperature: (prompts, runs)}.
      partners: from `find_partners`.

    Returns:
      The records; those of methods without a partner are as they were.
    """
    found = {
        (temperature, *key): figures
        for temperature, (prompts, runs) in kept.items()
        for key, figures in compare_rounds(runs, prompts, partners).items()
    }
    keys = ((record["temperature"], record["method"], record["domain"]) for record in records)
    return [record | found.get(key, {}) for record, key in zip(records, keys, strict=True)]


def compare_rounds(
    runs: Sequence[Run], prompts: Sequence[LabelledPrompt], partners: Mapping[str, str]
) -> dict[tuple[str, str], dict[str, Any]]:
    """Divide the tokens a round of methods by those of their partners.

    The intervals are paired: both sides have the same resampled prompts, see
    `jaxspec.core.bootstrap`. As in `summarise`, tokens drawn by the prefill do not count.

    Args:
      runs: of all methods and prompts; the first repeat of each counts.
      partners: from `find_partners`.

    Returns:
      {(method, domain): {"against": the partner, "acceptance_ratio": their ratio,
      "acceptance_ratio_ci": its 95 % interval}}, for each domain and for all.
    """
    first = {(run.method, run.prompt): run for run in reversed(runs)}
    measured, found = {run.method for run in runs}, {}
    # At temperature 0, uncoupled methods are not measured.
    pairs = [pair for pair in partners.items() if measured.issuperset(pair)]
    for domain, chosen, _, drawn in each_domain(prompts):
        for method, other in pairs:
            own, others = ([first[name, i] for i in chosen] for name in (method, other))
            tokens, rounds = _count(own)
            base_tokens, base_rounds = _count(others)
            above, below = (tokens, base_rounds), (rounds, base_tokens)
            found[method, domain] = {
                "against": other,
                "acceptance_ratio": divide(
                    tokens.sum() * base_rounds.sum(), rounds.sum() * base_tokens.sum()
                ),
                "acceptance_ratio_ci": bound_ratio(drawn, above, below),
            }
    return found


def _count(runs: Sequence[Run]) -> tuple[np.ndarray, np.ndarray]:
    """Count the tokens after the prefill's and the rounds of each run, float [P]."""
    return (
        np.array([len(run.tokens) - 1 for run in runs], float),
        np.array([run.rounds for run in runs], float),
    )


def _rows_of(name: str) -> str:
    """Return the `@ROWS` of a method's name."""
    found = _ROWS.search(name)
    return found[0] if found else ""
