"""The text report of `jaxspec bench latency`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxspec.bench.latency.goals import (
    compare_piece,
    divide_known,
    group_cells,
    list_goals,
    measure_draft_cost,
    measure_draft_share,
    measure_round_overhead,
)
from jaxspec.bench.measure.phases import PIECES
from jaxspec.bench.report.table import Column, Table, fixed, interval

# Units of printed rates: GB/s and TFLOP/s.
_UNITS = (("bytes", 1e9), ("flops", 1e12))


def render_latency(report: dict[str, Any]) -> str:
    """Render device and ceilings, rounds, pieces, attention alone, goals, and skipped steps.

    Args:
      report: result of `measure_latency`.
    """
    where, goals = list_goals(report)
    titles = (f"goal ({where})", "wanted")
    tables = [_tabulate_rounds(report), _tabulate_pieces(report["records"])]
    if report["attention"]:
        tables.append(_tabulate_attention(report["attention"], report["ceilings"]))
    tables.append(Table([*map(Column, titles), Column("here", fixed(2))], goals))
    skipped = ["skipped: " + line for line in report["skipped"]]
    return "\n\n".join([_head(report), *(table.to_text() for table in tables), *skipped])


def _head(report: dict[str, Any]) -> str:
    s, c = report["settings"], report["ceilings"]
    layers = (
        ""
        if s["target_layers"] == s["of_layers"]
        else f" ({s['target_layers']} of {s['of_layers']} layers)"
    )
    quant = f", {s['quantize']} weights" if s["quantize"] else ""
    copy, product = c["copy_bytes_per_second"]["median"], c["matmul_flops_per_second"]["median"]
    cache = "unknown" if report["cache_bytes"] is None else f"{report['cache_bytes'] / 1e6:.0f} MB"
    return (
        f"{s['arch']}{layers}, {s['method']}, {s['dtype']}{quant}, batch {s['batch']}, on {report['device']['kind']} "
        f"({report['device']['cpus']} host cores), jax {report['versions']['jax']}\n"
        f"tree attention: {report['attention_by']['name']} ({report['attention_by']['reason']})\n"
        f"ceilings: copy {copy / 1e9:.1f} GB/s read and written, product {product / 1e12:.2f} TFLOP/s; last cache {cache}. "
        "Floors count each byte that must be read once; with * all of it fits into that cache, and the copy is no floor. "
        "c is (draft + absorb) / (depth x verify), the cost of a drafted token."
    )


def _tabulate_rounds(report: dict[str, Any]) -> Table:
    """Tabulate rounds by context and width: medians in milliseconds, and ratios by repeat."""
    columns = [
        *map(Column, ("context", "rows")),
        *(Column(f"{name} ms", fixed()) for name in ("ar", *PIECES, "round")),
        *(Column(f"{name}/ar", fixed(2)) for name in ("verify", "round")),
        Column("drafting", fixed(0, "%")),
        Column("depth"),
        Column("c", fixed()),
        Column("overhead", fixed(0, "%")),
        Column("kernels", fixed(0)),
        Column("% of floor", fixed(0, "%")),
        Column("forced tok/s", fixed(1)),
        Column("tok/round", fixed(2)),
        Column("speed-up", fixed(2)),
    ]
    rows = []
    for context, width, cell in group_cells(report["records"]):
        ms = {name: one["ms"] for name, one in cell.items()}
        whole, forced = cell.get("round", {}), cell.get("forced", {})
        plain = divide_known(1e3 * report["settings"]["batch"], ms.get("ar"))
        speed = forced.get("tokens_per_second")
        rows.append(
            [context, width, *(ms.get(name) for name in ("ar", *PIECES, "round"))]
            + [compare_piece(cell, name, ["ar"]) for name in ("verify", "round")]
            + [
                measure_draft_share(cell),
                *measure_draft_cost(cell),
                measure_round_overhead(cell),
                whole.get("kernels"),
                whole.get("percent_of_floor"),
            ]
            + [speed, forced.get("tokens_per_round"), divide_known(speed, plain)]
        )
    return Table(columns, rows)


def _tabulate_pieces(records: Sequence[dict[str, Any]]) -> Table:
    """Tabulate figures, one per row: spread, floor and rates."""
    columns = [
        *map(Column, ("context", "rows", "piece")),
        Column("ms", fixed()),
        Column("[quartiles]", interval(3)),
        Column("floor ms", fixed()),
        Column("% of floor"),
        Column("GB/s", fixed(1)),
        Column("TFLOP/s", fixed(3)),
        Column("MB", fixed(1)),
        Column("kernels", fixed(0)),
    ]
    rows = []
    for one in sorted(records, key=lambda one: (one["context"], one["width"])):
        star = "*" if one["cached"] else ""
        rates = [divide_known(one[f"{what}_per_second"], size) for what, size in _UNITS]
        rows.append(
            [one[key] for key in ("context", "width", "piece", "ms", "quartiles", "floor_ms")]
            + [fixed(0, "%")(one["percent_of_floor"]) + star, *rates]
            + [divide_known(one["bytes"], 1e6), one["kernels"]]
        )
    return Table(columns, rows)


def _tabulate_attention(records: Sequence[dict[str, Any]], ceilings: dict[str, Any]) -> Table:
    columns = [
        *map(Column, ("context", "rows")),
        Column("attention of a layer: reference ms", fixed(4)),
        Column("kernel ms", fixed(4)),
        Column("reference/kernel", fixed(2)),
        Column("kernel % of floor", fixed(0, "%")),
    ]
    moved, computed = (
        ceilings[name]["median"] for name in ("copy_bytes_per_second", "matmul_flops_per_second")
    )
    rows = []
    for one in sorted(records, key=lambda one: (one["context"], one["rows"])):
        floor = 1e3 * max(one["bytes"] / moved, one["flops"] / computed)
        share = None if one["kernel_ms"] is None else 100 * floor / one["kernel_ms"]
        keys = ("context", "rows", "reference_ms", "kernel_ms", "ratio")
        rows.append([*(one[key] for key in keys), share])
    return Table(columns, rows)
