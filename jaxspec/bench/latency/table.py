"""The latency report as text and as a plot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxspec.bench.latency.pieces import PIECES
from jaxspec.bench.report.table import align, show

# Work of the models themselves; what a round takes beyond it is overhead.
FORWARDS = ("draft", "verify", "absorb")
# (quantity, goal, of which figure) on an H100 at Qwen3-8B's shapes, bfloat16, batch 1, context
# 1024.
GOALS = (
    ("autoregressive step, % of copy bandwidth", ">= 85", lambda r: _share(r, "ar", 1)),
    ("autoregressive tokens/s", ">= 180", lambda r: _divide(1e3, _ms(r, "ar"))),
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
        lambda r: _overhead(_cells(r["records"])[-1][2]),
    ),
)


def render(report: dict[str, Any]) -> str:
    """All of it: device and ceilings, rounds, pieces, attention alone, goals, and what was
    skipped.
    """
    parts = [_head(report), align(_rounds(report)), align(_pieces(report["records"]))]
    if report["attention"]:
        parts.append(align(_attention(report["attention"], report["ceilings"])))
    parts.append(align(_goals(report)))
    parts += ["skipped: " + line for line in report["skipped"]]
    return "\n\n".join(part for part in parts if part)


def _head(report) -> str:
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
        f"{s['arch']}{layers}, {s['dtype']}{quant}, batch {s['batch']}, on {report['device']['kind']} "
        f"({report['device']['cpus']} host cores), jax {report['versions']['jax']}\n"
        f"tree attention: {report['attention_by']['name']} ({report['attention_by']['reason']})\n"
        f"ceilings: copy {copy / 1e9:.1f} GB/s read and written, product {product / 1e12:.2f} TFLOP/s; last cache {cache}. "
        "Floors count each byte that must be read once; with * all of it fits into that cache, and the copy is no floor."
    )


def _rounds(report) -> list[list[str]]:
    """A row per context and width: medians in milliseconds, and ratios, which are medians over the
    repeats.
    """
    rows = [
        [
            "context",
            "rows",
            "ar ms",
            *(f"{name} ms" for name in PIECES),
            "round ms",
            "verify/ar",
            "round/ar",
            "overhead",
        ]
        + ["kernels", "% of floor", "forced tok/s", "tok/round", "speed-up"]
    ]
    for context, width, cell in _cells(report["records"]):
        ms = {name: one["ms"] for name, one in cell.items()}
        whole, forced, step = cell.get("round", {}), cell.get("forced", {}), ms.get("ar")
        plain = _divide(1e3 * report["settings"]["batch"], step)
        rows.append(
            [str(context), str(width), *(show(ms.get(name)) for name in ("ar", *PIECES, "round"))]
            + [show(_ratio(cell, name, ["ar"]), 2) for name in ("verify", "round")]
            + [
                _percent(_overhead(cell)),
                show(whole.get("kernels"), 0),
                _percent(whole.get("percent_of_floor")),
            ]
            + [show(forced.get("tokens_per_second"), 1), show(forced.get("tokens_per_round"), 2)]
            + [show(_divide(forced.get("tokens_per_second"), plain), 2)]
        )
    return rows


def _pieces(records: Sequence[dict[str, Any]]) -> list[list[str]]:
    """A row per figure: spread, floor and rates."""
    rows = [
        [
            "context",
            "rows",
            "piece",
            "ms",
            "[quartiles]",
            "floor ms",
            "% of floor",
            "GB/s",
            "TFLOP/s",
            "MB",
            "kernels",
        ]
    ]
    for one in sorted(records, key=lambda one: (one["context"], one["width"])):
        star = "*" if one["cached"] else ""
        low, high = one["quartiles"]
        rates = [
            None if one[f"{what}_per_second"] is None else one[f"{what}_per_second"] / 10**e
            for what, e in (("bytes", 9), ("flops", 12))
        ]
        size = None if one["bytes"] is None else one["bytes"] / 1e6
        rows.append(
            [
                str(one["context"]),
                str(one["width"]),
                one["piece"],
                show(one["ms"]),
                f"[{low:.3f}, {high:.3f}]",
            ]
            + [
                show(one["floor_ms"]),
                _percent(one["percent_of_floor"]) + star,
                show(rates[0], 1),
                show(rates[1], 3),
            ]
            + [show(size, 1), show(one["kernels"], 0)]
        )
    return rows


def _attention(records: Sequence[dict[str, Any]], ceilings: dict[str, Any]) -> list[list[str]]:
    rows = [
        [
            "context",
            "rows",
            "attention of a layer: reference ms",
            "kernel ms",
            "reference/kernel",
            "kernel % of floor",
        ]
    ]
    rates = [
        ceilings[name]["median"] for name in ("copy_bytes_per_second", "matmul_flops_per_second")
    ]
    for one in sorted(records, key=lambda one: (one["context"], one["rows"])):
        floor = 1e3 * max(one["bytes"] / rates[0], one["flops"] / rates[1])
        share = None if one["kernel_ms"] is None else 100 * floor / one["kernel_ms"]
        cells = [
            show(one["reference_ms"], 4),
            show(one["kernel_ms"], 4),
            show(one["ratio"], 2),
            _percent(share),
        ]
        rows.append([str(one["context"]), str(one["rows"]), *cells])
    return rows


def _goals(report) -> list[list[str]]:
    """What is wanted, and where; on other devices and of other architectures the same figures,
    without a verdict.
    """
    mini = report["settings"]["arch"] == "mini"
    where = "mini, two CPU cores" if mini else "Qwen3-8B, bfloat16, one H100, batch 1, context 1024"
    chosen = MINI_GOALS if mini and report["records"] else () if mini else GOALS
    return [
        [f"goal ({where})", "wanted", "here"],
        *([what, goal, show(figure(report), 2)] for what, goal, figure in chosen),
    ]


def _overhead(cell: dict[str, dict[str, Any]]) -> float | None:
    """Percent that the round takes beyond the forwards of target and drafter."""
    ratio = _ratio(cell, "round", FORWARDS)
    return None if ratio is None else 100 * (ratio - 1)


def _ratio(cell: dict[str, dict[str, Any]], piece: str, others: Sequence[str]) -> float | None:
    """Median over the repeats of the time of `piece` over that of `others`, which were taken in
    turn.
    """
    if not {piece, *others} <= set(cell):
        return None
    below = np.sum([cell[name]["samples"] for name in others], axis=0)
    return float(np.median(np.asarray(cell[piece]["samples"]) / below))


def _cells(records) -> list[tuple[int, int, dict[str, dict]]]:
    cells: dict[tuple[int, int], dict[str, dict]] = {}
    for one in records:
        cells.setdefault((one["context"], one["width"]), {})[one["piece"]] = one
    return [(*key, cells[key]) for key in sorted(cells)]


def _figure(report, piece: str, width: int | None = None) -> dict[str, Any]:
    """The record of `piece` at the goals' context; `ar`, timed beside every width, at the first."""
    found = (one for one in report["records"] if one["piece"] == piece and one["context"] == 1024)
    return next((one for one in found if width is None or one["width"] == width), {})


def _ms(report, piece: str, width: int | None = None) -> float | None:
    return _figure(report, piece, width).get("ms")


def _over_ar(report, piece: str, width: int) -> float | None:
    found = (
        cell
        for context, rows, cell in _cells(report["records"])
        if (context, rows) == (1024, width)
    )
    return next((_ratio(cell, piece, ["ar"]) for cell in found), None)


def _share(report, piece: str, width: int | None) -> float | None:
    rate = _figure(report, piece).get("bytes_per_second")
    return (
        None if rate is None else 100 * rate / report["ceilings"]["copy_bytes_per_second"]["median"]
    )


def _kernel(report, rows: int, context: int) -> float | None:
    return next(
        (
            one["ratio"]
            for one in report["attention"]
            if (one["rows"], one["context"]) == (rows, context)
        ),
        None,
    )


def _divide(a: float | None, b: float | None) -> float | None:
    return None if a is None or not b else a / b


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}%"


def plot(report: dict[str, Any], path: Path) -> None:
    """Write a picture: milliseconds of every piece over the width, a panel a context, floors
    dashed; needs matplotlib.
    """
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    contexts = sorted({one["context"] for one in report["records"]})
    figure, axes = plt.subplots(
        1,
        max(len(contexts), 1),
        figsize=(1 + 4.2 * max(len(contexts), 1), 4),
        squeeze=False,
        sharey=True,
    )
    for context, panel in zip(contexts, axes[0], strict=False):
        for number, piece in enumerate(("ar", *PIECES, "round")):
            found = sorted(
                (
                    one
                    for one in report["records"]
                    if (one["piece"], one["context"]) == (piece, context)
                ),
                key=_width,
            )
            widths, colour = [one["width"] for one in found], f"C{number}"
            panel.plot(widths, [one["ms"] for one in found], "o-", color=colour, label=piece)
            if found and found[0]["floor_ms"] and piece in ("verify", "round"):
                panel.plot(widths, [one["floor_ms"] for one in found], "--", color=colour)
        panel.set(xscale="log", yscale="log", xlabel="rows", title=f"context {context}")
        panel.set_xticks(sorted({one["width"] for one in report["records"]}), labels=None)
        panel.xaxis.set_major_formatter("{x:.0f}")
        panel.minorticks_off()
    axes[0][0].set_ylabel("milliseconds")
    axes[0][0].legend(fontsize=7)
    figure.suptitle(
        f"{report['settings']['arch']}, {report['settings']['dtype']}, {report['device']['kind']} (dashed: floor)"
    )
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _width(one: dict[str, Any]) -> int:
    return one["width"]
