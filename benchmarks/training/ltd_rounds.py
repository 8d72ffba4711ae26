"""Show what rounds trained policies choose, and where their time goes, on a record.

    python -m benchmarks ltd-rounds --record test.npz --times times.json --tuned-on train.npz \\
      --ways both=runs/ltd/policy depth:depth=runs/ltd/policy --out rounds.json

The record, the times and the ways are those of `benchmarks.training.ltd_compare`, and all times are
modelled. It prints Learning to Draft's figures: milliseconds of drafting and of verification per
token (figure 2), how often each depth and size is chosen (figure 5), and depth and rows of easy and
hard rounds (figure 6). A round is as easy as the tokens that the whole recorded tree would commit
there, whatever the policy chose; the paper takes the tokens that the round committed, which grow
with its depth, so both are there.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from benchmarks.training.ltd_compare import CompareOptions, walk_ways
from jaxspec.bench.report.table import Column, Table, fixed, percent
from jaxspec.costs.files import load_costs
from jaxspec.costs.round_costs import RoundCosts
from jaxspec.io.files.atomic import write_text
from training.replay.records import Record, load_record
from training.rl.replay import Walk

# Of rounds that are compared: the third with the fewest tokens, and the third with the most.
HARD, EASY = "hard", "easy"
KINDS = ("reachable", "committed")
# Rows and draft steps in terms of which the paper describes its rounds, the root included.
MANY_ROWS, FEW_STEPS = 61, 6


@dataclasses.dataclass
class RoundsOptions(CompareOptions):
    """Options: those of the comparison."""


def split_times(record: Record, times: RoundCosts, walk: Walk) -> dict[str, float]:
    """Compute figure 2: `draft_ms` and `verify_ms` per committed token, and `draft_share`."""
    rows = np.asarray(record.sizes)[walk.sizes]
    context = record.context[walk.positions]
    parts = times.split(context, rows=rows, steps=walk.steps)
    draft, verify = (1e3 * float(part.sum()) / walk.tokens.sum() for part in parts)
    return {"draft_ms": draft, "verify_ms": verify, "draft_share": draft / (draft + verify)}


def describe_rounds(record: Record, walk: Walk) -> dict[str, dict[str, dict[str, float]]]:
    """Compute figure 6: {what orders the rounds: {`hard`, `easy`: figures}}.

    Figures are `rounds`, `tokens` (mean, of what orders them), `steps` and `rows` (means), and the
    shares of rounds with `many_rows`, more than `MANY_ROWS`, and `few_steps`, fewer than
    `FEW_STEPS`. Rounds with the same tokens are on the same side.
    """
    at, rows = walk.positions, np.asarray(record.sizes)[walk.sizes]
    orders = {
        "reachable": record.committed[at, -1, -1],
        "committed": record.committed[at, walk.steps, walk.sizes],
    }
    found: dict[str, dict[str, dict[str, float]]] = {}
    for name, tokens in orders.items():
        low, high = np.quantile(tokens, (1 / 3, 2 / 3))
        easy = tokens >= high
        for side, kept in ((HARD, (tokens <= low) & ~easy), (EASY, easy)):
            if kept.any():
                found.setdefault(name, {})[side] = {
                    "rounds": int(kept.sum()),
                    "tokens": float(tokens[kept].mean()),
                    "steps": float(walk.steps[kept].mean()),
                    "rows": float(rows[kept].mean()),
                    "many_rows": float((rows[kept] > MANY_ROWS).mean()),
                    "few_steps": float((walk.steps[kept] < FEW_STEPS).mean()),
                }
    return found


def count_choices(record: Record, walk: Walk) -> dict[str, dict[int, float]]:
    """Compute figure 5: the share of rounds of each number of draft `steps` and of `rows`."""
    chosen = {"steps": walk.steps, "rows": np.asarray(record.sizes)[walk.sizes]}
    return {
        name: {int(value): count / len(values) for value, count in sorted(Counter(values).items())}
        for name, values in ((name, values.tolist()) for name, values in chosen.items())
    }


def show_rounds(options: CompareOptions) -> dict[str, dict[str, Any]]:
    """Compute the figures of every way, `static` and `oracle` first; seeds are added up.

    Raises:
      ValueError, FileNotFoundError: as `ltd_compare.compare`.
    """
    record, times = load_record(options.record), load_costs(options.times)
    found = {}
    for name, walks in walk_ways(options, record, times).items():
        walk = _joined(walks)
        found[name] = {
            **split_times(record, times, walk),
            "rounds": describe_rounds(record, walk),
            "choices": count_choices(record, walk),
        }
    return found


def _joined(walks: list[Walk]) -> Walk:
    """Put the rounds of several trainings behind one another."""
    sums = (np.sum([walk[i] for walk in walks], axis=0) for i in range(3))
    rounds = (np.concatenate([walk[i] for walk in walks]) for i in range(3, 6))
    return Walk(*sums, *rounds)


def render_rounds(found: Mapping[str, dict[str, Any]]) -> str:
    """Render both figures as tables."""
    columns = [Column("way"), Column("draft ms/token", fixed()), Column("verify ms/token", fixed())]
    keys = ("draft_ms", "verify_ms", "draft_share")
    shares = Table(
        [*columns, Column("drafting", percent())],
        [[name, *(one[key] for key in keys)] for name, one in found.items()],
    )
    titles = ("rounds", "tokens", "steps", "rows", "many_rows", "few_steps")
    shows = [fixed(0), *[fixed(1)] * 3, percent(), percent()]
    heads = ["rounds", "tokens", "steps", "rows", f"> {MANY_ROWS} rows", f"< {FEW_STEPS} steps"]
    rows = [
        [name, order, side, *(figures[title] for title in titles)]
        for name, one in found.items()
        for order, sides in one["rounds"].items()
        for side, figures in sides.items()
    ]
    named = [Column("way"), Column("by tokens"), Column("")]
    return f"{shares.to_text()}\n\n{Table([*named, *map(Column, heads, shows)], rows).to_text()}"


def main(options: RoundsOptions) -> None:
    """Compute the figures, print them and write them."""
    found = show_rounds(options)
    print(render_rounds(found))
    if options.out:
        write_text(options.out, json.dumps(found, indent=1) + "\n")
