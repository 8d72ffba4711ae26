"""Fit a drafter's score temperature: the divisor of its logits when paths of a tree are scored.

A drafter hedges as if the target sampled. At temperature 0 the target never does, and sharper
scores grow deeper trees. The best divisor depends on the drafter and on the target's temperature.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import jaxspec
from jaxspec.bench.measure.conversations import number_questions
from jaxspec.bench.measure.methods import Method
from jaxspec.bench.report.table import Column, Table, fixed, interval
from jaxspec.call.options import group_options
from jaxspec.core.bootstrap import bound_ratio, resample_prompts
from jaxspec.core.params import Params
from jaxspec.io.text.prompt_files import LabelledPrompt

GRID = (0.3, 0.4, 0.5, 0.6, 0.8, 1.0)


def fit_scores(
    params: Params,
    prompts: Sequence[LabelledPrompt],
    method: Method,
    *,
    grid: Sequence[float] = GRID,
    options: dict[str, Any] | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Count the tokens per round with every score temperature of a grid.

    The best of the grid is chosen on every other prompt; its gain over the drafter's own is counted
    on the rest.

    Args:
      params: from `jaxspec.load`.
      prompts: at least two.
      method: drafter, builder and budget.
      options: keyword arguments of `jaxspec.decode`, such as `temperature`.

    Returns:
      A JSON-able report: `own`, the drafter's own score temperature at this sampling temperature;
      `best`; `results`, per score temperature the tokens per round of both halves; and `gain`, with
      its interval, of `best` over `own` on the prompts that did not choose it.

    Raises:
      ValueError: fewer than two prompts, a grid with numbers that are not above 0, or as
        `jaxspec.decode`.
    """
    if len(prompts) < 2:
        raise ValueError("one half of the prompts chooses: give at least two prompts")
    if not grid or not all(value > 0 for value in grid):
        raise ValueError(f"the grid is {list(grid)}: give numbers above 0")
    given = {"policy": None} | (options or {}) | method.options
    pair = params.spec.drafter(given["drafter"]).score_temperature
    own = pair[1 if given.get("temperature") else 0]
    counts = {
        value: _count(params, prompts, given | {"score_temperature": value}, progress)
        for value in sorted({*grid, own})
    }
    halves = {value: [_ratio(found[half::2]) for half in (0, 1)] for value, found in counts.items()}
    best = max(halves, key=lambda value: halves[value][0])
    rest = prompts[1::2]
    drawn = resample_prompts([prompt.domain for prompt in rest], number_questions(rest))
    chosen, before = (counts[value][1::2].astype(float) for value in (best, own))
    return {
        "method": method.name,
        "prompts": len(prompts),
        "own": own,
        "best": best,
        "gain": halves[best][1] / halves[own][1],
        "interval": bound_ratio(drawn, [chosen[:, 0], before[:, 1]], [chosen[:, 1], before[:, 0]]),
        "results": [
            {"score_temperature": value, "choosing": one, "others": other}
            for value, (one, other) in halves.items()
        ],
    }


def _count(
    params: Params, prompts: Sequence[LabelledPrompt], options: dict[str, Any], progress: Callable
) -> np.ndarray:
    """Count the tokens and rounds of every prompt: int64 [P, 2]."""
    counts = []
    for number, prompt in enumerate(prompts, 1):
        progress(f"{options['score_temperature']:g}: prompt {number} of {len(prompts)}")
        stats = jaxspec.decode(params, prompt.content, **group_options(**options)).stats
        counts.append((stats.emitted - 1, stats.rounds))
    return np.array(counts)


def _ratio(counts: np.ndarray) -> float:
    tokens, rounds = counts.sum(0)
    return float(tokens / rounds)


def render_scores(report: dict[str, Any]) -> str:
    """Return the report as a table and a line."""
    columns = [
        Column("score temperature", fixed(2), "right"),
        Column("tokens a round, prompts that choose", fixed(3), "right"),
        Column("tokens a round, others", fixed(3), "right"),
    ]
    names = ("score_temperature", "choosing", "others")
    text = Table(columns, [[one[n] for n in names] for one in report["results"]]).to_text()
    bounds = interval(3)(report["interval"])
    return (
        f"{text}\n{report['method']}: best {report['best']:g}, the drafter's own is "
        f"{report['own']:g}; {report['gain']:.3f} {bounds} times its tokens a round on the others"
    )
