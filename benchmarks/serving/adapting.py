"""What serving loses while a drafter learns from it: the same load with and without, in turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxspec.bench.endpoint.load import Load
from jaxspec.bench.endpoint.summary import summarise
from jaxspec.bench.report.table import Column, Table, fixed, with_interval
from jaxspec.bench.serve.compare_rules import compare_repeats, count_rounds
from jaxspec.bench.serve.drive import drive
from jaxspec.call.arguments import check_count
from jaxspec.serve import Engine, ServeRequest, Update

PLAIN = "never"
# Loads after which an engine that has made no update is measured all the same.
_WARM = 8


class Visit(NamedTuple):
    """A visit: when it ended, the tokens that it gave, and whether an update was being made."""

    ended: float
    tokens: int
    updating: bool


class Watched:
    """An engine that notes its visits."""

    def __init__(self, engine: Engine):
        self._engine, self.visits = engine, list[Visit]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def visit(self) -> list[Update]:
        """Visit the device."""
        updates = self._engine.visit()
        learning = self._engine.counters().get("adaptation", {})
        tokens = sum(len(one.tokens) for one in updates)
        self.visits.append(Visit(time.perf_counter(), tokens, learning.get("updating", False)))
        return updates


def compare_adapting(
    engines: Mapping[str, Engine],
    requests: Sequence[ServeRequest],
    clients: int,
    *,
    repeats: int,
    progress: Callable[[str], None] = lambda line: None,
) -> list[dict[str, Any]]:
    """Send the same load to each engine, in turns; every second repeat in reversed order.

    Loads before them let engines compile, and make their first updates. After a load, what an
    engine has yet to learn is learned before the next engine's turn.

    Args:
      engines: by name, warmed up; `PLAIN` is the one that does not learn.
      requests: of a load, which ignore ends of text.
      clients: of the closed loop.

    Returns:
      A record per engine and repeat: the summary, tokens per round, updates, seconds of training,
      whether the texts were those of `PLAIN`; and tokens and seconds of the visits during updates
      and of the others, with the longest gap between the ends of two visits.

    Raises:
      ValueError: there are no repeats.
    """
    check_count("repeats", repeats)
    for name, engine in engines.items():
        for turn in range(_WARM if engine.adapts is not None else 1):
            progress(f"{name}: warming up, load {turn + 1}")
            _serve(engine, requests, clients)
            if turn and engine.counters().get("adaptation", {}).get("updates"):
                break
    records = []
    for repeat in range(repeats):
        turns, found = list(engines.items()), {}
        for name, engine in turns[::-1] if repeat % 2 else turns:
            progress(f"repeat {repeat + 1} of {repeats}: {name}")
            found[name] = _serve(engine, requests, clients)
        for name, (record, texts) in found.items():
            equal = texts == found[PLAIN][1]
            records.append({"engine": name, "repeat": repeat, "equal": equal} | record)
    return records


def _serve(
    engine: Engine, requests: Sequence[ServeRequest], clients: int
) -> tuple[dict[str, Any], list[list[int]]]:
    """Serve a load, and let the engine learn the rest of it."""
    texts: list[list[int]] = [[] for _ in requests]
    before, watched = engine.counters(), Watched(engine)
    measured = drive(watched, requests, Load(len(requests), clients=clients), texts)  # type: ignore[arg-type]
    after = engine.counters()
    learned = {}
    if engine.adapts is not None:
        old, new = before["adaptation"], after["adaptation"]
        names = ("queries", "updates", "published", "refused", "left_out", "seconds")
        learned = {name: new[name] - old[name] for name in names} | {"version": new["version"]}
        engine.adapts.wait()
        engine.visit()  # the newest version decodes
    made = summarise(measured) | count_rounds(before, after) | {"learned": learned}
    return made | split_visits(watched.visits), texts


def split_visits(visits: Sequence[Visit]) -> dict[str, Any]:
    """Sum up tokens and seconds of visits with and without an update, from the end of the one before.

    The first visit, which has none before it, is left out.
    """
    found = {"updating": [0, 0.0], "resting": [0, 0.0]}
    gaps = []
    for last, visit in zip(visits, visits[1:], strict=False):
        sums = found["updating" if visit.updating or last.updating else "resting"]
        sums[0] += visit.tokens
        sums[1] += visit.ended - last.ended
        gaps.append(visit.ended - last.ended)
    return found | {"longest_gap": max(gaps, default=0.0), "visits": len(visits)}


def render_adapting(records: Sequence[dict[str, Any]]) -> str:
    """Render a table of medians and sums over the repeats.

    The speed during updates is compared with that of `PLAIN` in the same repeats.
    """
    one, two = fixed(1), fixed(2)
    columns = [Column("engine"), Column("tok/s", one, "right")]
    columns += [Column(f"over {PLAIN}", with_interval(3), "right")]
    columns += [
        Column("during updates", with_interval(3), "right"),
        Column("of time", two, "right"),
    ]
    columns += [Column("tok/round", two, "right"), Column("updates", fixed(0), "right")]
    columns += [Column("refused", fixed(0), "right"), Column("ITL p99", one, "right")]
    columns += [Column("longest gap ms", fixed(0), "right"), Column("texts equal")]
    rows = []
    by_engine: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        by_engine.setdefault(record["engine"], []).append(record)
    plain = [record["tokens_per_second"] for record in by_engine[PLAIN]]
    for name, own in by_engine.items():
        speeds = [record["tokens_per_second"] for record in own]
        during = [(r["updating"], speed) for r, speed in zip(own, plain, strict=True)]
        during = [(tokens / seconds, speed) for (tokens, seconds), speed in during if tokens]
        ratio = compare_repeats(*zip(*during, strict=True)) if during else (None, None)
        share = sum(r["updating"][1] for r in own) / sum(r["seconds"] for r in own)
        learned = [record["learned"] for record in own]
        rows.append(
            [
                name,
                float(np.median(speeds)),
                compare_repeats(speeds, plain),
                ratio,
                share,
                float(np.median([record["tokens_per_slot_round"] for record in own])),
                sum(one.get("updates", 0) for one in learned),
                sum(one.get("refused", 0) for one in learned),
                float(np.median([record["ms"]["between parts"]["p99"] for record in own])),
                1e3 * max(record["longest_gap"] for record in own),
                "yes" if all(record["equal"] for record in own) else "no",
            ]
        )
    return Table(columns, rows).to_text()
