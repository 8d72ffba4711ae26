"""Compare the rules by which an engine shares the rows of a round, under the same loads."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxspec.bench.endpoint.load import Load
from jaxspec.bench.endpoint.summary import summarise
from jaxspec.bench.report.table import Column, Table, fixed, with_interval
from jaxspec.bench.serve.drive import drive
from jaxspec.core.bootstrap import LEVEL, resample_prompts
from jaxspec.serve import Engine, ServeRequest

_LATENCIES = ("first token", "per token", "between parts")


def compare_rules(
    engines: Mapping[str, Engine],
    requests: Sequence[ServeRequest],
    loads: Sequence[Load],
    *,
    repeats: int,
    goals: tuple[float | None, float | None] = (None, None),
    progress: Callable[[str], None] = lambda line: None,
) -> list[dict[str, Any]]:
    """Send each load to each engine, in turns; every second repeat has them in reversed order.

    Each engine first serves a request without its drafter, because a process touches its memory for
    the first time slowly. What a drafter gives, engines find out while they are measured.

    Args:
      engines: by the name of their rule; warmed up.
      repeats: times that each load goes to each engine.
      goals: seconds to the first token and per further token, for goodput.

    Returns:
      A record per load, rule and repeat: the summary, and the engine's rounds.
    """
    first = dataclasses.replace(requests[0], drafter="ar")
    for engine in engines.values():
        drive(engine, [first], Load(1, clients=1))
    records = []
    for repeat in range(repeats):
        for index, load in enumerate(loads):
            turns = list(engines.items())
            # A load may find the machine warmer or cooler for what ran before it.
            for rule, engine in turns[::-1] if repeat % 2 else turns:
                progress(f"repeat {repeat + 1} of {repeats}: {load.describe()}, {rule}")
                before = engine.counters()
                summary = summarise(drive(engine, requests, load), *goals)
                rounds = count_rounds(before, engine.counters())
                records.append({"load": index, "rule": rule, "repeat": repeat} | summary | rounds)
    return records


def count_rounds(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Return tokens per round of a slot, rows per round, and the share of rounds that drafted."""
    took = {name: after[name] - before[name] for name in ("rounds", "slot_rounds", "tokens")}
    rows = sum(rows * count for rows, count in after["rows_per_round"].items())
    rows -= sum(rows * count for rows, count in before["rows_per_round"].items())
    drafted = after["drafted_rounds"] - before["drafted_rounds"]
    return {
        "tokens_per_slot_round": took["tokens"] / max(took["slot_rounds"], 1),
        "rows_per_round": rows / max(took["rounds"], 1),
        "drafted_share": drafted / max(took["rounds"], 1),
    }


def render_rules(records: Sequence[dict[str, Any]], loads: Sequence[Load]) -> str:
    """Render a table of medians over the repeats; times are in milliseconds.

    The first rule is compared with each other one repeat by repeat: the mean ratio of their speeds,
    with its interval over repeats.
    """
    one, two = fixed(1), fixed(2)
    rules = list(dict.fromkeys(record["rule"] for record in records))
    columns = [Column("load"), Column("rule"), Column("tok/s", one, "right")]
    columns += [Column("least", one, "right"), Column("most", one, "right")]
    columns += [Column(f"{rules[0]} over it", with_interval(3), "right")]
    columns += [Column("goodput", two, "right")]
    short = ("TTFT", "TPOT", "ITL")
    columns += [Column(f"{name} {p}", one, "right") for name in short for p in ("p50", "p95")]
    columns += [Column(name, two, "right") for name in ("tok/round", "rows", "drafted")]
    rows = []
    for index, load in enumerate(loads):
        same = {
            rule: [r for r in records if r["load"] == index and r["rule"] == rule] for rule in rules
        }
        first = [r["tokens_per_second"] for r in same[rules[0]]]
        for rule, of in same.items():
            speeds = [r["tokens_per_second"] for r in of]
            times = [
                _median([r["ms"][n][p] for r in of]) for n in _LATENCIES for p in ("p50", "p95")
            ]
            figures = ("tokens_per_slot_round", "rows_per_round", "drafted_share")
            shares = [_median([r[name] for r in of]) for name in figures]
            speed = [_median(speeds), min(speeds), max(speeds), compare_repeats(first, speeds)]
            speed += [_median([r["goodput"] for r in of])]
            rows.append([load.describe(), rule, *speed, *times, *shares])
    return Table(columns, rows).to_text()


def compare_repeats(
    above: Sequence[float], below: Sequence[float]
) -> tuple[float, tuple[float, float] | None]:
    """Return the geometric mean of `above` / `below`, and its 95 % interval over two repeats or
    more.

    Both ran in turns, so the machine's changes from repeat to repeat cancel.
    """
    logs = np.log(above) - np.log(below)
    ratio = float(np.exp(logs.mean()))
    if len(logs) < 2:
        return ratio, None
    means = resample_prompts(["repeat"] * len(logs)) @ logs / len(logs)
    tail = (100 - LEVEL) / 2
    low, high = np.exp(np.percentile(means, (tail, 100 - tail)))
    return ratio, (float(low), float(high))


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
