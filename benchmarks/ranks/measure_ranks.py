"""Measure how often first candidates are right: decode prompts with a probing tree, and count."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import jaxspec
from benchmarks.ranks.places import PLACES, SIBLING, SPINE, count_seen, probe_paths
from jaxspec.bench.measure.conversations import number_questions
from jaxspec.bench.report.table import Column, Table, interval, percent, show_value
from jaxspec.call.options import group_options
from jaxspec.core.bootstrap import bound_ratio, resample_prompts
from jaxspec.core.params import Params
from jaxspec.drafters.registry import make_drafter, record_of
from jaxspec.io.text.prompt_files import LabelledPrompt

DEPTH, WIDTH = 7, 4


def list_drafters(params: Params) -> list[str]:
    """List the drafters of `params` that propose alternatives."""
    spec = params.spec
    names = [name for name in spec.drafter_names if name != "ar"]
    return [name for name in names if not record_of(spec.drafter(name)).retrieval]


def measure_ranks(
    params: Params,
    prompts: Sequence[LabelledPrompt],
    drafters: Sequence[str],
    *,
    width: int = WIDTH,
    depth: int = DEPTH,
    options: dict[str, Any] | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Decode every prompt with every drafter and count where its first candidate was right.

    Args:
      params: from `jaxspec.load`, with the drafters.
      drafters: names, see `list_drafters`.
      width, depth: of the probing tree, see `probe_paths`; a drafter of shorter paths gets a
        shallower tree.
      options: keyword arguments of `jaxspec.decode`, such as `temperature`.

    Returns:
      A JSON-able report: settings, and under `results` one record per drafter, place and depth,
      and one per drafter and place with depth None for all depths.

    Raises:
      ValueError: width or depth is out of range, or as `jaxspec.decode`.
    """
    if width < 2 or depth < 2:
        raise ValueError(f"width is {width} and depth {depth}: give at least 2 each")
    drawn = resample_prompts([prompt.domain for prompt in prompts], number_questions(prompts))
    results = []
    for name in drafters:
        deep = min(depth, make_drafter(params.spec.drafter(name)).depth)
        builder = jaxspec.builders.static(probe_paths(deep, width))
        texts = []
        for number, prompt in enumerate(prompts, 1):
            progress(f"{name}: prompt {number} of {len(prompts)}")
            out = jaxspec.decode(
                params,
                prompt.content,
                drafter=name,
                **group_options(builder=builder, policy=None, **options or {}),
                trace=True,
            )
            texts.append(out.rounds)
        results += _summarise(name, count_seen(texts), drawn)
    return {"width": width, "depth": depth, "prompts": len(prompts), "results": results}


def _summarise(
    drafter: str, counts: dict[tuple[str, int], np.ndarray], drawn: np.ndarray
) -> list[dict[str, Any]]:
    """Return the records of a drafter."""
    found = []
    for place in PLACES:
        cells = {depth: cell for (own, depth), cell in sorted(counts.items()) if own == place}
        if not cells:
            continue
        for depth, cell in [(None, sum(cells.values())), *cells.items()]:
            right, seen = cell.T
            found.append(
                {
                    "drafter": drafter,
                    "place": place,
                    "depth": depth,
                    "right": int(right.sum()),
                    "seen": int(seen.sum()),
                    "share": float(right.sum() / seen.sum()),
                    "interval": bound_ratio(drawn, [right], [seen]),
                }
            )
    return found


def render_ranks(report: dict[str, Any]) -> str:
    """Return the table: the share of right first candidates, and how many fewer after a sibling."""
    cells = {(r["drafter"], r["place"], r["depth"]): r for r in report["results"]}
    keys = dict.fromkeys((r["drafter"], r["depth"]) for r in report["results"])
    rows = []
    for drafter, depth in sorted(
        keys, key=lambda key: (list(keys).index((key[0], None)), key[1] or 0)
    ):
        places = [cells.get((drafter, place, depth)) for place in PLACES]
        shares = {place: cell and cell["share"] for place, cell in zip(PLACES, places, strict=True)}
        known = shares[SPINE] is not None and shares[SIBLING] is not None
        loss = shares[SPINE] - shares[SIBLING] if known else None
        row = [drafter, depth or "all", loss]
        for cell in places:
            row += [cell and cell["share"], cell and cell["interval"], cell and cell["seen"]]
        rows.append(row)
    columns = [
        Column("drafter"),
        Column("depth"),
        Column("lost off the spine", percent(1), "right"),
    ]
    for title in ("on the spine", "after a sibling", "further below"):
        columns += [
            Column(title, percent(1), "right"),
            Column("95 %", interval(2)),
            Column("seen", show_value, "right"),
        ]
    return Table(columns, rows).to_text()
