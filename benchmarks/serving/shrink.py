"""What a batch gains that leaves out its finished sequences, and what its smaller programs cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

import jaxspec
from jaxspec.bench.report.table import Column, Table, fixed, with_interval
from jaxspec.bench.serve.compare_rules import compare_repeats
from jaxspec.call.arguments import check_count
from jaxspec.call.options import group_options
from jaxspec.core.params import Params


class _Run(NamedTuple):
    seconds: float
    tokens: list[list[int]]


def compare_shrinking(
    params: Params,
    prompts: Sequence[list[int]],
    batches: Sequence[int],
    *,
    repeats: int,
    progress: Callable[[str], None] = lambda line: None,
    **options: Any,
) -> list[dict[str, Any]]:
    """Decode batches whole and shrinking, in turns. Each repeat has other prompts, as far as there
    are.

    Texts end where the model ends them, or at `max_new_tokens`.

    Args:
      prompts: token ids.
      batches: sequences of a batch, at least 2.
      options: keyword arguments of `jaxspec.decode`.

    Returns:
      A record per batch: seconds that compiling takes for the whole batch, and for the smaller ones
      besides; tokens, the share of places in the batch whose text goes on, and the seconds of both.

    Raises:
      ValueError: there are no repeats, or a batch has fewer than two sequences.
      RuntimeError: the texts differ.
    """
    check_count("repeats", repeats)
    records = []
    for batch in batches:
        check_count("batches", batch, 2)
        sizes = {"prompt_tokens": max(map(len, prompts)), "batch": batch} | options
        progress(f"batch {batch}: compiling")
        compiled = [
            jaxspec.warmup(params, shrink=shrink, **group_options(**sizes)).seconds
            for shrink in (False, True)
        ]
        record: dict[str, Any] = {"batch": batch, "compile_seconds": compiled}
        record |= {"tokens": [], "live": [], "whole": [], "shrinking": []}
        for repeat in range(-1, repeats):  # the first one only warms the machine up
            texts = [prompts[(max(repeat, 0) * batch + i) % len(prompts)] for i in range(batch)]
            progress(f"batch {batch}: repeat {repeat + 1} of {repeats}")
            order = (False, True) if repeat % 2 else (True, False)
            runs = {shrink: _decode(params, texts, shrink, options) for shrink in order}
            if runs[False].tokens != runs[True].tokens:
                raise RuntimeError(f"a shrinking batch of {batch} changed a text: please report it")
            if repeat >= 0:
                lengths = [len(tokens) for tokens in runs[False].tokens]
                record["tokens"].append(sum(lengths))
                record["live"].append(float(np.mean(lengths) / max(lengths)))
                record["whole"].append(runs[False].seconds)
                record["shrinking"].append(runs[True].seconds)
        records.append(record)
    return records


def _decode(
    params: Params, texts: Sequence[list[int]], shrink: bool, options: dict[str, Any]
) -> _Run:
    began = time.perf_counter()
    outputs = jaxspec.decode(params, list(texts), shrink=shrink, **group_options(**options))
    return _Run(time.perf_counter() - began, [output.tokens for output in outputs])


def render_shrinking(records: Sequence[dict[str, Any]]) -> str:
    """Render a table of medians; the gain is the mean ratio of speeds, with its interval over
    repeats.
    """
    one, two = fixed(1), fixed(2)
    columns = [Column("batch"), Column("live", two, "right"), Column("whole tok/s", one, "right")]
    columns += [Column("shrinking tok/s", one, "right")]
    columns += [Column("gain", with_interval(2), "right")]
    columns += [Column("compile s", one, "right"), Column("smaller ones", one, "right")]
    rows = []
    for record in records:
        tokens = np.asarray(record["tokens"])
        whole, shrinking = (tokens / record[name] for name in ("whole", "shrinking"))
        medians = [float(np.median(values)) for values in (record["live"], whole, shrinking)]
        gain = compare_repeats(shrinking, whole)
        rows.append([str(record["batch"]), *medians, gain, *record["compile_seconds"]])
    return Table(columns, rows).to_text()
