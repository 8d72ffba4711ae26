"""What gathering evidence costs: the same prompts decoded with it and without it, in turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.adapt.kept_runs import Record
from jaxspec.adapt import AdaptiveSession, AdaptOptions
from jaxspec.adapt.deciders.fixed import make_never
from jaxspec.bench.report.table import Column, Table, fixed, with_interval
from jaxspec.call.options import group_options
from jaxspec.core.bootstrap import bound_ratio, resample_prompts
from jaxspec.core.params import Params
from jaxspec.io.text.prompt_files import LabelledPrompt


def measure_evidence(
    params: Params,
    prompts: Sequence[LabelledPrompt],
    *,
    drafter: str | None = None,
    repeats: int = 7,
    options: AdaptOptions | None = None,
    decode: dict[str, Any] | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> Record:
    """Decode every prompt `repeats` times each way, in an order that changes every time.

    Args:
      drafter: its name; None: the default one.
      decode: keyword arguments of `jaxspec.decode`.

    Returns:
      A JSON-able record. Each of its `prompts` has the median seconds of its prefill and rounds
      without evidence (`plain`) and with it (`gathering`), those of cutting the evidence into
      segments (`cutting`), and whether both gave the same tokens.

    Raises:
      ValueError: no prompts, or `repeats` is below 1.
    """
    if repeats < 1 or not prompts:
        raise ValueError(f"{len(prompts)} prompts, {repeats} times: give at least one of both")
    given = {"policy": None, "budget": 16} | (decode or {})
    session = AdaptiveSession(params, make_never(learns=True), drafter=drafter, options=options)
    rows = []
    for number, prompt in enumerate(prompts, 1):
        progress(f"prompt {number} of {len(prompts)}")
        times: dict[str, list[float]] = {"plain": [], "gathering": [], "cutting": []}
        tokens = set()
        # The first time compiles, at least the first prompt's.
        for repeat in range(-1, repeats):
            for gathers in (True, False) if repeat % 2 else (False, True):
                out = session.decode(
                    prompt.content, domain=prompt.domain, adapt=gathers, **group_options(**given)
                )
                tokens.add(tuple(out.tokens))
                if repeat >= 0:
                    seconds = out.stats.prefill_seconds + out.stats.decode_seconds
                    times["gathering" if gathers else "plain"].append(seconds)
            if repeat >= 0:
                times["cutting"].append(session.events[-1]["evidence_seconds"])
        medians = {name: float(np.median(seconds)) for name, seconds in times.items()}
        rows.append({"domain": prompt.domain, **medians, "equal": len(tokens) == 1})
    session.close()
    return {"drafter": session.drafter, "repeats": repeats, "decode": given, "prompts": rows}


def render_evidence(report: Record) -> str:
    """Return the table of a report of `measure_evidence`."""
    rows = report["prompts"]
    drawn = resample_prompts([row["domain"] for row in rows])
    plain, gathering, cutting = (
        np.array([row[name] for row in rows]) for name in ("plain", "gathering", "cutting")
    )
    columns = [Column("what"), Column("ms a prompt", fixed(1), "right")]
    columns += [Column("% of the call", with_interval(1), "right")]
    table = [["without evidence", 1e3 * plain.mean(), (100.0, None)]]
    for name, added in (("gathering adds", gathering - plain), ("cutting adds", cutting)):
        bounds = bound_ratio(drawn, [added], [plain])
        share = 100 * added.sum() / plain.sum()
        bounds = None if bounds is None else [100 * bound for bound in bounds]
        table.append([name, 1e3 * added.mean(), (share, bounds)])
    differing = sum(not row["equal"] for row in rows)
    return f"{Table(columns, table).to_text()}\nother tokens with evidence: {differing} prompts"
