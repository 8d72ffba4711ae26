"""What the engine adds to the device loop: the same texts from an engine and from one `decode`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import jaxspec
from jaxspec.bench.endpoint.load import Load
from jaxspec.bench.report.table import Column, Table, fixed, with_interval
from jaxspec.bench.serve.drive import drive
from jaxspec.call.arguments import check_budget, check_count
from jaxspec.call.options import group_options
from jaxspec.core.params import Params
from jaxspec.serve import Engine, ServeRequest, make_engine
from jaxspec.serve.scheduling.pace import VISIT_SECONDS
from jaxspec.tuner.tuner import process_tuner


def saturate(
    params: Params,
    prompts: Sequence[list[int]],
    batches: Sequence[int],
    *,
    max_new_tokens: int,
    budget: int,
    capacity: int,
    repeats: int,
    visit_seconds: float = VISIT_SECONDS,
    progress: Callable[[str], None] = lambda line: None,
) -> list[dict[str, Any]]:
    """Decode batches with an engine of as many slots and with `jaxspec.decode`, in turns.

    Both verify the same rows in each round: a root of each text, or a tree of `budget` rows. Each
    repeat leaves out one token more of every prompt's beginning, so that the engine cannot use rows
    of the repeat before again. Both serve the texts once before.

    Args:
      visit_seconds: see `make_engine`.

    Returns:
      A record per batch and method: tokens per second of both.

    Raises:
      ValueError: there are no repeats, the budget is out of range, or a text does not fit into a
        slot.
    """
    check_count("repeats", repeats)
    check_budget(budget)
    records = []
    for batch in batches:
        texts = [prompts[i % len(prompts)] for i in range(batch)]
        for rule in ("ar", "fixed"):
            progress(f"batch {batch}, {rule}: compiling")
            options: dict[str, Any] = {"drafter": "ar"} if rule == "ar" else {"budget": budget}
            sizes = {"slots": batch, "capacity": capacity, "queue": batch}
            engine = make_engine(params, rule=rule, visit_seconds=visit_seconds, **sizes, **options)
            for request in _make_requests(texts, max_new_tokens):
                engine.check(request)
            engine.warm_up()

            def decode(texts, options=options) -> tuple[float, int]:
                began = time.perf_counter()
                outputs = jaxspec.decode(
                    params,
                    texts,
                    max_new_tokens=max_new_tokens,
                    **group_options(ignore_eos=True, **options),
                    capacity=capacity,
                    tuner=process_tuner(),
                )
                seconds = time.perf_counter() - began
                return seconds, sum(len(output.tokens) for output in outputs)

            decode(texts)
            _serve(engine, texts, max_new_tokens)
            speeds: dict[str, list[float]] = {"engine": [], "decode": []}
            for repeat in range(repeats):
                cut = [text[min(repeat + 1, len(text) - 1) :] for text in texts]
                seconds, tokens = decode(cut)
                speeds["decode"].append(tokens / seconds)
                seconds, tokens = _serve(engine, cut, max_new_tokens)
                speeds["engine"].append(tokens / seconds)
            records.append({"batch": batch, "rule": rule} | speeds)
    return records


def _serve(engine: Engine, texts: Sequence[list[int]], max_new_tokens: int) -> tuple[float, int]:
    requests = _make_requests(texts, max_new_tokens)
    measured = drive(engine, requests, Load(len(requests), clients=len(requests)))
    return measured.seconds, sum(one.tokens for one in measured.asked)


def _make_requests(texts: Sequence[list[int]], max_new_tokens: int) -> list[ServeRequest]:
    return [
        ServeRequest(tuple(text), max_new_tokens=max_new_tokens, ignore_eos=True) for text in texts
    ]


def render_saturation(records: Sequence[dict[str, Any]]) -> str:
    """Render a table of medians; overhead is how much longer the engine takes, with quartiles."""
    number = fixed(1)
    columns = [Column("batch"), Column("rule"), Column("decode tok/s", number, "right")]
    columns += [Column("engine tok/s", number, "right")]
    columns += [Column("overhead %", with_interval(1), "right")]
    rows = []
    for record in records:
        decode, engine = (np.asarray(record[name]) for name in ("decode", "engine"))
        low, overhead, high = np.percentile(100 * (decode / engine - 1), (25, 50, 75))
        medians = [float(np.median(speeds)) for speeds in (decode, engine)]
        rows.append([str(record["batch"]), record["rule"], *medians, (overhead, (low, high))])
    return Table(columns, rows).to_text()
