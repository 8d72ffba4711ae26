"""Turn measured streams into figures: speed, gain, cost, forgetting, regret to the oracle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.adapt.modelled import Model
from jaxspec.adapt.prices import price_work
from jaxspec.adapt.work import POSITIONS, Work
from jaxspec.bench.report.table import Column, Table, fixed, percent, show_value, with_interval
from jaxspec.core.bootstrap import bound_ratio, resample_prompts

# Queries of a window.
WINDOW = 50
# Arms whose best, block by block and in hindsight, is the oracle.
FIXED = ("never", "always-head", "always-full")
Record = dict[str, Any]


def summarise(report: Record, model: Model) -> Record:
    """Add `summary` and `windows` to a report of `measure_adapt`.

    Args:
      model: gives the modelled seconds.
    """
    runs, clocks = (
        report["runs"],
        {
            "measured": count_seconds,
            "modelled": model_seconds(model),
            "two_devices": aside_seconds(model),
        },
    )
    summary = []
    for arm in report["arms"]:
        own = [run for run in runs if run["arm"] == arm]
        one: Record = {"arm": arm}
        for name, clock in clocks.items():
            one[name] = _compare(runs, own, clock)
        queries = [query for run in own for query in run["queries"]]
        updates = [query for query in queries if "update" in query]
        spent = sum(q["update_seconds"] + q["evidence_seconds"] for q in queries)
        modelled = [clocks["modelled"](q) for q in queries]
        beside = sum(modelled) - sum(q["rounds"] * model.round_seconds for q in queries)
        one |= {
            "pace": _pace(queries),
            "blocks": [
                _pace([q for q in queries if q["block"] == block])
                for block in sorted({q["block"] for q in queries})
            ],
            "updates": len(updates) / len(own),
            "refused": sum(q["update"]["published"] is None for q in updates) / len(own),
            "restored": sum(q["restored"] for q in queries) / len(own),
            "share": spent / sum(count_seconds(q) for q in queries),
            "modelled_share": beside / sum(modelled),
            "flops": sum(_steps(q, model.step_flops, POSITIONS) for q in updates) / len(own),
            "bytes": sum(_steps(q, model.step_bytes) for q in updates) / len(own),
            "forgetting": float(np.mean([run["forgetting"] for run in own])),
        }
        summary.append(one)
    windows = {arm: _windows([r for r in runs if r["arm"] == arm]) for arm in report["arms"]}
    more = {"windows": windows, "along": trace_speeds(report, clocks["modelled"])}
    return report | {"summary": summary, **more, "model": vars(model)}


def trace_speeds(report: Record, clock: Callable[[Record], float]) -> dict[str, list[float]]:
    """Return each arm's speed over `never` from the first query up to every one, over all seeds.

    Nothing is returned for reports without `never`. At the ends of passes these are the speeds of
    one pass, two, and so on (SpecBlock, table 5).
    """
    passed: dict[str, np.ndarray] = {}
    for arm in report["arms"]:
        own = [run["queries"] for run in report["runs"] if run["arm"] == arm]
        length = min(map(len, own))
        each = np.array([[clock(query) for query in one[:length]] for one in own])
        passed[arm] = each.sum(0).cumsum()
    never = passed.get("never")
    return {} if never is None else {arm: (never / own).tolist() for arm, own in passed.items()}


def count_seconds(query: Record) -> float:
    """Return the measured seconds of a query, with its evidence and its update."""
    return query["decode_seconds"] + query["evidence_seconds"] + query["update_seconds"]


def model_seconds(model: Model) -> Callable[[Record], float]:
    """Make the modelled seconds of a query: rounds, tests, older versions and steps."""

    def seconds(query: Record) -> float:
        steps = _steps(query, model.step_seconds, POSITIONS) if "update" in query else 0.0
        tests = price_work(model, Work(query["passes"], query["reads"]))
        loads = query.get("loads", 0) * model.load_seconds
        return query["rounds"] * model.round_seconds + tests + loads + steps

    return seconds


def aside_seconds(model: Model) -> Callable[[Record], float]:
    """Make the modelled seconds of a query if a second device trains: rounds and versions
    that it sends.

    The updates are those that were made on one device. A version would come a few rounds later.
    """

    def seconds(query: Record) -> float:
        published = "update" in query and query["update"]["published"] is not None
        sent = published + query["restored"]
        return query["rounds"] * model.round_seconds + sent * model.copy_seconds

    return seconds


def _steps(query: Record, cost: Callable[..., float], *arguments: int) -> float:
    ran = query["redrafts"], query["anchored"]
    return query["steps"] * cost(query["update"]["action"], *arguments, *ran)


def _pace(queries: Sequence[Record]) -> float:
    return sum(q["tokens"] for q in queries) / max(sum(q["rounds"] for q in queries), 1)


def _compare(runs: Sequence[Record], own: Sequence[Record], clock: Callable) -> Record:
    """Return tokens per second, its ratio to `never` with an interval over queries, and the regret.

    The interval resamples queries within domains and seeds, the same for both arms.
    """
    queries = [query for run in own for query in run["queries"]]
    tokens = np.array([query["tokens"] for query in queries], float)
    seconds = np.array([clock(query) for query in queries])
    found: Record = {"speed": float(tokens.sum() / seconds.sum())}
    never = [q for run in runs if run["arm"] == "never" for q in run["queries"]]
    if never:
        before = np.array([clock(query) for query in never])
        strata = [
            f"{run['seed']} {q['block']} {q['domain']}" for run in own for q in run["queries"]
        ]
        drawn = resample_prompts(strata)
        found["gain"] = float(before.sum() / seconds.sum())
        found["interval"] = bound_ratio(drawn, [before], [seconds])
        best = _oracle(runs, clock)
        found["oracle"] = float(before.sum() / best)
        gained, rounding = before.sum() - best, 1e-9 * best
        found["share_of_oracle"] = (
            float((before.sum() - seconds.sum()) / gained) if gained > rounding else None
        )
        found["regret"] = float(seconds.sum() - best)
    return found


def _oracle(runs: Sequence[Record], clock: Callable) -> float:
    """Sum the seconds of the arm that was the best of `FIXED` in every block of every seed."""
    total: dict[tuple, dict[str, float]] = {}
    for run in runs:
        if run["arm"] in FIXED:
            for query in run["queries"]:
                block = total.setdefault((run["seed"], query["block"]), {})
                block[run["arm"]] = block.get(run["arm"], 0.0) + clock(query)
    return sum(min(block.values()) for block in total.values())


def _windows(own: Sequence[Record]) -> list[Record]:
    """Return tokens per round of every window of queries, pooled over seeds, with intervals."""
    length = min(len(run["queries"]) for run in own)
    found = []
    for first in range(0, length, WINDOW):
        queries = [q for run in own for q in run["queries"][first : first + WINDOW]]
        drawn = resample_prompts([query["domain"] for query in queries])
        tokens, rounds = (
            np.array([q[name] for q in queries], float) for name in ("tokens", "rounds")
        )
        bounds = bound_ratio(drawn, [tokens], [rounds])
        found.append({"first": first, "pace": _pace(queries), "interval": bounds})
    return found


def render_adapt(report: Record, markdown: bool = False) -> str:
    """Return the table of a summary, and one of tokens per round in every block."""
    tables = [_tabulate(report), _tabulate_blocks(report)]
    return "\n\n".join(
        table.to_markdown() if markdown else table.to_text() for table in tables if table
    )


def _tabulate_blocks(report: Record) -> Table | None:
    count = len(report["summary"][0]["blocks"])
    if count == 1:
        return None
    columns = [Column(f"block {number + 1}", fixed(3), "right") for number in range(count)]
    rows = [[one["arm"], *one["blocks"]] for one in report["summary"]]
    return Table([Column("tokens per round"), *columns], rows)


def _tabulate(report: Record) -> Table:
    columns = [Column("arm"), Column("tokens per round", fixed(3), "right")]
    for name in ("measured", "modelled"):
        columns += [
            Column(f"{name} speed", with_interval(3), "right"),
            Column("of the oracle's gain", percent(0), "right"),
        ]
    columns += [
        Column("two devices", with_interval(3), "right"),
        Column("updates", fixed(1), "right"),
        Column("refused", fixed(1), "right"),
        Column("restored", fixed(1), "right"),
        Column("time", percent(1), "right"),
        Column("modelled time", percent(1), "right"),
        Column("TFLOP", fixed(1), "right"),
        Column("GB", fixed(0), "right"),
        Column("first domain", show_value, "right"),
    ]
    rows = []
    for one in report["summary"]:
        row = [one["arm"], one["pace"]]
        for name in ("measured", "modelled"):
            clock = one[name]
            row += [(clock.get("gain"), clock.get("interval")), clock.get("share_of_oracle")]
        row.append((one["two_devices"].get("gain"), one["two_devices"].get("interval")))
        row += [
            one["updates"],
            one["refused"],
            one["restored"],
            one["share"],
            one["modelled_share"],
        ]
        row += [one["flops"] / 1e12, one["bytes"] / 1e9, f"{one['forgetting']:.3f}"]
        rows.append(row)
    return Table(columns, rows)
