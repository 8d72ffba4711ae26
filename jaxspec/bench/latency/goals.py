"""Compare pieces of a latency report, and list the goals for these figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxspec.bench.measure.phases import PIECES
from jaxspec.costs.expected_speed import draft_cost

# One piece's records by (context, width): {piece: record}.
Cell = dict[str, dict[str, Any]]
# Work of the models themselves; the rest of a round is overhead.
FORWARDS = ("draft", "verify", "absorb")
# Pieces that are no drafting.
_NOT_DRAFTING = ("verify", "commit")


def measure_round_overhead(cell: Cell) -> float | None:
    """Return by how many percent a round exceeds the forwards of target and drafter; None if
    unknown.
    """
    ratio = compare_piece(cell, "round", FORWARDS)
    return None if ratio is None else 100 * (ratio - 1)


def measure_draft_share(cell: Cell) -> float | None:
    """Return the share of a round's pieces that is drafting, in percent: `absorb` is a part of it,
    for the drafter reads what was committed. None if a piece is missing.
    """
    ms = {name: one["ms"] for name, one in cell.items() if name in PIECES}
    if not {*FORWARDS, "tree", "commit"} <= set(ms):
        return None
    return 100 * sum(ms[name] for name in ms if name not in _NOT_DRAFTING) / sum(ms.values())


def measure_draft_cost(cell: Cell) -> tuple[int | None, float | None]:
    """Return the longest drafted path of a cell, and c of JetSpec's equation 2, where the drafter's
    time is that of both its forwards, `draft` and `absorb`; None if unknown.
    """
    depth = cell.get("draft", {}).get("depth")
    ratio = compare_piece(cell, "verify", ("draft", "absorb"))
    return depth, None if ratio is None else draft_cost(1.0, ratio, depth or 0)


def compare_piece(cell: Cell, piece: str, others: Sequence[str]) -> float | None:
    """Return the median over repeats of the time of `piece` over that of `others`; None if one is
    missing.

    All pieces were timed in turn, so the times of a repeat belong together.
    """
    if not {piece, *others} <= set(cell):
        return None
    below = np.sum([cell[name]["samples"] for name in others], axis=0)
    return float(np.median(np.asarray(cell[piece]["samples"]) / below))


def group_cells(records: Sequence[dict[str, Any]]) -> list[tuple[int, int, Cell]]:
    """Group records as (context, width, {piece: record}), in ascending order."""
    cells: dict[tuple[int, int], Cell] = {}
    for one in records:
        cells.setdefault((one["context"], one["width"]), {})[one["piece"]] = one
    return [(*key, cells[key]) for key in sorted(cells)]


def _figure(report: dict[str, Any], piece: str, width: int | None = None) -> dict[str, Any]:
    """Return the record of `piece` at the goals' context. `ar` is timed with every width; its first
    record is returned.
    """
    found = (one for one in report["records"] if one["piece"] == piece and one["context"] == 1024)
    return next((one for one in found if width is None or one["width"] == width), {})


def _ms(report: dict[str, Any], piece: str, width: int | None = None) -> float | None:
    return _figure(report, piece, width).get("ms")


def _over_ar(report: dict[str, Any], piece: str, width: int) -> float | None:
    found = (
        cell
        for context, rows, cell in group_cells(report["records"])
        if (context, rows) == (1024, width)
    )
    return next((compare_piece(cell, piece, ["ar"]) for cell in found), None)


def _share(report: dict[str, Any], piece: str, width: int | None) -> float | None:
    rate = _figure(report, piece).get("bytes_per_second")
    return (
        None if rate is None else 100 * rate / report["ceilings"]["copy_bytes_per_second"]["median"]
    )


def _kernel(report: dict[str, Any], rows: int, context: int) -> float | None:
    return next(
        (
            one["ratio"]
            for one in report["attention"]
            if (one["rows"], one["context"]) == (rows, context)
        ),
        None,
    )


def divide_known(a: float | None, b: float | None) -> float | None:
    """Divide two figures; None if one is unknown or the divisor is 0."""
    return None if a is None or not b else a / b


# (quantity, goal, figure of a report) on an H100 at Qwen3-8B's shapes, bfloat16, batch 1, context
# 1024.
GOALS = (
    ("autoregressive step, % of copy bandwidth", ">= 85", lambda r: _share(r, "ar", 1)),
    ("autoregressive tokens/s", ">= 180", lambda r: divide_known(1e3, _ms(r, "ar"))),
    ("verification of 64 rows / step", "<= 1.10", lambda r: _over_ar(r, "verify", 64)),
    ("verification of 256 rows / step", "<= 1.45", lambda r: _over_ar(r, "verify", 256)),
    ("tree building at 256 rows, ms", "<= 0.15", lambda r: _ms(r, "tree", 256)),
    ("acceptance + commit at 64 rows, ms", "<= 0.10", lambda r: _ms(r, "commit", 64)),
    ("acceptance + commit at 256 rows, ms", "<= 0.10", lambda r: _ms(r, "commit", 256)),
    ("round of 64 rows / step", "<= 1.35", lambda r: _over_ar(r, "round", 64)),
    ("round of 64 rows, ms", "<= 7.5", lambda r: _ms(r, "round", 64)),
    ("kernel over reference, 64 rows, 8192 context", ">= 3", lambda r: _kernel(r, 64, 8192)),
    ("kernel over reference, 64 rows, 32768 context", ">= 3", lambda r: _kernel(r, 64, 32768)),
)
# At `mini` on two CPU cores.
MINI_GOALS = (
    (
        "round beyond its forwards, % at the widest tree",
        "<= 15",
        lambda r: measure_round_overhead(group_cells(r["records"])[-1][2]),
    ),
)


def list_goals(report: dict[str, Any]) -> tuple[str, list[tuple[str, str, float | None]]]:
    """List the goals that apply to a report: (where they hold, [(quantity, goal, figure here)]).

    Other devices and architectures get the same figures without a verdict.
    """
    mini = report["settings"]["arch"] == "mini"
    where = "mini, two CPU cores" if mini else "Qwen3-8B, bfloat16, one H100, batch 1, context 1024"
    chosen = MINI_GOALS if mini and report["records"] else () if mini else GOALS
    return where, [(what, goal, figure(report)) for what, goal, figure in chosen]
