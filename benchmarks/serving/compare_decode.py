"""Compare a serving engine with `jaxspec.decode` for one client, and with plain decoding for more."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

import jaxspec
from jaxspec.bench.endpoint.load import Load
from jaxspec.bench.report.table import Column, Table, fixed, with_interval
from jaxspec.bench.serve.compare_rules import compare_repeats, count_rounds
from jaxspec.bench.serve.drive import drive
from jaxspec.core.params import Params
from jaxspec.serve import Engine, ServeRequest

ENGINE, DECODE, PLAIN = "engine", "decode", "engine, plain"


def compare_decode(
    params: Params,
    engine: Engine,
    requests: Sequence[ServeRequest],
    clients: Sequence[int],
    *,
    repeats: int,
    progress: Callable[[str], None] = lambda line: None,
) -> list[dict[str, Any]]:
    """Answer the same requests by an engine and by what a user would call instead, in turns.

    One client sends one request after the other; beside it, `jaxspec.decode` with default settings
    decodes each of them. Several clients are compared with the same requests without drafts, in the
    same engine. A first pass that does not count compiles, and lets both choose.

    Args:
      engine: warmed up.
      requests: that ignore ends of text, so that all texts are as long as they may be.
      clients: numbers of clients; 1 is the one that `decode` is compared with.
      repeats: times that each side answers all requests.

    Returns:
      A record per number of clients, side and repeat: tokens a second, tokens per round, and
      whether all texts were those of the first side.
    """
    records = []
    for count in clients:
        sides: dict[str, Callable[[], dict[str, Any]]] = {
            ENGINE: lambda count=count: _serve(engine, requests, count),
        }
        if count == 1:
            sides[DECODE] = lambda: _decode(params, requests)
        plain = [dataclasses.replace(request, drafter="ar") for request in requests]
        sides[PLAIN] = lambda count=count, plain=plain: _serve(engine, plain, count)
        for repeat in range(-1, repeats):
            turns = list(sides.items())
            texts: dict[str, Any] = {}
            for name, answer in turns[::-1] if repeat % 2 else turns:
                progress(f"{count} clients, {name}, repeat {repeat + 1} of {repeats}")
                figures = answer()
                texts[name] = figures.pop("texts")
                if repeat >= 0:
                    records.append({"clients": count, "side": name, "repeat": repeat, **figures})
            while repeat < 0 and engine.missing:
                time.sleep(0.5)  # what this load was the first to want
            for record in records[-len(turns) :] if repeat >= 0 else ():
                record["same"] = texts[record["side"]] == texts[ENGINE]
    return records


def _decode(params: Params, requests: Sequence[ServeRequest]) -> dict[str, Any]:
    texts, rounds, compiled, began = [], 0, 0.0, time.perf_counter()
    for request in requests:
        output = jaxspec.decode(
            params,
            list(request.tokens),
            max_new_tokens=request.max_new_tokens,
            temperature=request.temperature,
            seed=request.seed,
            sampling=jaxspec.Sampling(ignore_eos=True),
        )
        texts.append(output.tokens)
        rounds += output.stats.rounds
        # A drafter that is tried for the first time is compiled, which the engine does meanwhile.
        compiled += output.stats.compile_seconds
    seconds, tokens = time.perf_counter() - began - compiled, sum(map(len, texts))
    # The first token of each text comes from its prompt.
    per_round = (tokens - len(texts)) / max(rounds, 1)
    return {"texts": texts, "tokens_per_second": tokens / seconds, "tokens_per_round": per_round}


def _serve(engine: Engine, requests: Sequence[ServeRequest], clients: int) -> dict[str, Any]:
    before = engine.counters()
    texts: list[list[int]] = [[] for _ in requests]
    measured = drive(engine, requests, Load(len(requests), clients=clients), texts)
    rounds = count_rounds(before, engine.counters())
    tokens = sum(map(len, texts))
    return {
        "texts": texts,
        "tokens_per_second": tokens / measured.seconds,
        "tokens_per_round": rounds["tokens_per_slot_round"],
        "drafted": rounds["drafted_share"],
    }


def render_decode(records: Sequence[dict[str, Any]]) -> str:
    """Render a table; ratios are the engine's speed over each other side's, repeat by repeat."""
    columns = [Column("clients", str, "right"), Column("side"), Column("tok/s", fixed(1), "right")]
    columns += [Column("tok/round", fixed(2), "right"), Column("drafted", fixed(2), "right")]
    columns += [Column(f"{ENGINE} over it", with_interval(2), "right"), Column("same texts")]
    rows = []
    for clients in dict.fromkeys(one["clients"] for one in records):
        own = [one for one in records if one["clients"] == clients]
        speeds = {
            side: [one["tokens_per_second"] for one in own if one["side"] == side]
            for side in dict.fromkeys(one["side"] for one in own)
        }
        for side, of in speeds.items():
            same = [one for one in own if one["side"] == side]
            mean = [
                sum(one.get(name, 0.0) for one in same) / len(same)
                for name in ("tokens_per_second", "tokens_per_round", "drafted")
            ]
            drafted = mean[2] if side != DECODE else None
            ratio = compare_repeats(speeds[ENGINE], of)
            equal = "yes" if all(one["same"] for one in same) else "no"
            rows.append([clients, side, *mean[:2], drafted, ratio, equal])
    return Table(columns, rows).to_text()
