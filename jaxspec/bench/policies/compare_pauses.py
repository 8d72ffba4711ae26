"""`jaxspec bench pauses`: what other bounds of the controller's pauses would cost.

Every prompt is decoded once with `ar` and once with a method; the rest is a replay.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jaxspec.bench.measure.decodes import time_decodes
from jaxspec.bench.measure.methods import Method
from jaxspec.bench.measure.prompt_files import LabelledPrompt
from jaxspec.bench.policies.replay_pauses import RecordedText, always_speed, find_reach, replay
from jaxspec.bench.report.summary import describe_environment
from jaxspec.bench.report.table import Column, Table, fixed
from jaxspec.core.params import Params
from jaxspec.engine.plan import make_plan
from jaxspec.engine.session import prepare
from jaxspec.policies.bastion.pauses import BOUNDS, Bounds


def record_texts(
    params: Params,
    prompts: Sequence[LabelledPrompt],
    method: Method,
    *,
    options: dict[str, Any],
    progress: Callable[[str], None] = lambda line: None,
) -> tuple[list[RecordedText], float, int]:
    """Decode the prompts with `ar` and with `method`.

    Returns:
      (texts, time of a drafted round in rounds of `ar`, most tokens of a round).
    """
    runs, _ = time_decodes(
        params,
        prompts,
        [Method("ar", {"method": "ar"}), method],
        repeats=1,
        options=options,
        progress=progress,
    )
    session = prepare(params, prompts[0].content, **options | method.options)
    longest = make_plan(params.spec, session.config).longest
    seconds = {
        name: sum(run.decode_seconds for run in runs if run.method == name)
        / max(sum(run.rounds for run in runs if run.method == name), 1)
        for name in ("ar", method.name)
    }
    texts = [
        RecordedText(prompts[run.prompt].domain, find_reach(run.round_tokens, longest))
        for run in runs
        if run.method == method.name
    ]
    return texts, seconds[method.name] / seconds["ar"], longest


def compare_bounds(
    texts: Sequence[RecordedText],
    cost: float,
    longest: int,
    grid: Sequence[Sequence[float]],
    *,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """Replay every combination of bounds on each domain alone, and on all texts in random order.

    Args:
      grid: values of each of the `Bounds`.

    Returns:
      A record per combination, after one of drafting always (`bounds` is None): the bounds, speeds
      over `ar` by stream (a domain, or `mixed`), and `losses`, what each stream loses against the
      better of drafting always and never.
    """
    bounds = [Bounds(*values) for values in itertools.product(*grid)]
    streams = {
        domain: [text for text in texts if text.domain == domain]
        for domain in dict.fromkeys(text.domain for text in texts)
    }
    order = np.random.default_rng(seed).permutation(len(texts))
    streams["mixed"] = [texts[i] for i in order]
    always = {name: always_speed(stream, cost) for name, stream in streams.items()}
    found = {name: replay(stream, cost, longest, bounds) for name, stream in streams.items()}
    records = []
    for number, one in enumerate(bounds):
        speeds = {name: float(values[number]) for name, values in found.items()}
        losses = {name: 1 - speeds[name] / max(1.0, always[name]) for name in streams}
        records.append({"bounds": one._asdict(), "speeds": speeds, "losses": losses})
    return [{"bounds": None, "speeds": always, "losses": None}, *records]


def summarise_losses(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Pool the losses of each combination of bounds over costs and streams, the smallest mean first.

    Args:
      results: records of `compare_bounds`, for any costs.

    Returns:
      Records {"bounds", "mean", "largest"}.
    """
    pooled: dict[tuple[float, ...], list[float]] = {}
    for one in results:
        if one["bounds"] is not None:
            pooled.setdefault(tuple(one["bounds"].values()), []).extend(one["losses"].values())
    found = [
        {
            "bounds": Bounds(*bounds)._asdict(),
            "mean": float(np.mean(losses)),
            "largest": max(losses),
        }
        for bounds, losses in pooled.items()
    ]
    return sorted(found, key=lambda one: one["mean"])


def measure_pauses(
    params: Params,
    prompts: Sequence[LabelledPrompt],
    method: Method,
    *,
    grid: Sequence[Sequence[float]],
    costs: Sequence[float] = (),
    options: dict[str, Any],
    progress: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Record the texts and compare bounds on them.

    Args:
      costs: times of a drafted round in rounds of `ar` to assume, besides the measured one.

    Returns:
      A JSON-able report: the measured `cost`, `longest`, `results`, the records of
      `compare_bounds`, each with its `cost`, and `summary`, from `summarise_losses`.
    """
    texts, measured, longest = record_texts(
        params, prompts, method, options=options, progress=progress
    )
    results = [
        {"cost": cost} | record
        for cost in (measured, *costs)
        for record in compare_bounds(texts, cost, longest, grid)
    ]
    return describe_environment(params) | {
        "method": method.name,
        "cost": measured,
        "longest": longest,
        "results": results,
        "summary": summarise_losses(results),
    }


def render_pauses(report: dict[str, Any]) -> str:
    """Format the report as two tables: each cost, and all costs together."""
    streams = list(report["results"][0]["speeds"])
    columns = [Column("cost", fixed(2)), Column("first/most/trial", _name)]
    columns += [Column(name, fixed(2)) for name in streams]
    rows = [
        [one["cost"], one["bounds"], *(one["speeds"][name] for name in streams), _largest(one)]
        for one in report["results"]
    ]
    pooled = [Column("first/most/trial", _name)]
    pooled += [Column(f"{name} loss", fixed(3)) for name in ("mean", "largest")]
    return (
        f"{report['method']}: a drafted round takes {report['cost']:.2f} rounds of ar. Speeds over "
        f"ar; the default is {_name(BOUNDS._asdict())}.\n"
        + Table([*columns, Column("largest loss", fixed(3))], rows).to_text()
        + "\n\nLosses against the better of drafting always and never, over all costs and streams:\n"
        + Table(pooled, [list(one.values()) for one in report["summary"]]).to_text()
    )


def _largest(record: dict[str, Any]) -> float | None:
    return None if record["losses"] is None else max(record["losses"].values())


def _name(bounds: dict[str, float] | None) -> str:
    return "always" if bounds is None else "/".join(f"{value:g}" for value in bounds.values())
