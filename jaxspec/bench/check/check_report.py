"""The text report of `jaxspec check`."""

from __future__ import annotations

from typing import Any

from jaxspec.bench.check.causes import render_causes
from jaxspec.bench.check.check_goals import (
    find_result,
    find_texts,
    list_goals,
    list_shortfalls,
)
from jaxspec.bench.report.table import Column, Table, fixed

_SHOWN_KERNELS = 12


def render_check(report: dict[str, Any]) -> str:
    """Render what was measured, most important first, then goals and shortfalls."""
    device, versions = report["device"], report["versions"]
    parts = [
        f"{device['kind']} ({device['platform']}), jax {versions['jax']}, "
        f"{report['sizes']['arch']} in {report['sizes']['dtype']}",
        _mesh(report),
        *(_ceilings(report), _kernels(report), _lossless(report)),
        *(_ways(report, "causes"), _rounds(report)),
        *(_verification(report), _prefills(report)),
        *(_profile(report), _ways(report, "options"), _skipped(report)),
        _goals(report),
    ]
    short = list_shortfalls(report)
    parts.append("falls short:\n  " + "\n  ".join(short) if short else "nothing falls short")
    return "\n\n".join(part for part in parts if part)


def _mesh(report: dict[str, Any]) -> str:
    """Say which steps ran on a shared target, and which on one device."""
    mesh = report.get("mesh")
    if not mesh:
        return ""
    steps = report["steps"].items()
    ran = [name.partition(":")[0] for name, step in steps if "skipped" not in step]
    parts = [
        ", ".join(dict.fromkeys(name for name in ran if (name in mesh["steps"]) == shared))
        for shared in (True, False)
    ]
    lines = [
        f"mesh model={mesh['model']}: {mesh['model']} devices share the target in: {parts[0]}",
        f"on one device: {parts[1]}",
    ]
    if report["device"]["platform"] == "cpu":
        lines.append("virtual devices share one CPU: times with them are not those of several")
    return "\n".join(lines)


def _ceilings(report: dict[str, Any]) -> str:
    found = find_result(report, "ceilings")
    if found is None:
        return ""
    copy, product = (
        found[name]["median"] for name in ("copy_bytes_per_second", "matmul_flops_per_second")
    )
    return f"copies {copy / 1e9:.0f} GB/s, products {product / 1e12:.3g} TFLOP/s"


def _kernels(report: dict[str, Any]) -> str:
    lines = []
    layer, attention = (find_result(report, step) or {} for step in ("layer kernels", "kernels"))
    for name, one in (layer | attention).items():
        worst = ", ".join(f"{dtype} {error:.1e}" for dtype, error in one["worst"].items())
        lines.append(f"kernel {name}: {one['cases']} cases, {len(one['failed'])} wrong; {worst}")
        lines += [f"  refuses {n} sizes: {why}" for why, n in one["refused"].items()]
        lines += [f"  wrong: {case}" for case in one["failed"][:5]]
    return "\n".join(lines)


def _lossless(report: dict[str, Any]) -> str:
    found = find_texts(report)
    if not found:
        return ""
    mesh = report.get("mesh")
    where = f"mini on {mesh['model']} devices" if mesh else "mini"
    columns = [Column(f"{where}, float32"), Column("differing"), Column("tokens/round", fixed(2))]
    rows = [
        [name, f"{one['differing']} of {one['of']}", one["acceptance"]]
        for name, one in found.items()
    ]
    shown = [
        f"{name}: expected {expected}, got {got}"
        for name, one in found.items()
        for expected, got in one.get("texts", [])[:1]
    ]
    return "\n".join([Table(columns, rows).to_text(), *shown])


def _ways(report: dict[str, Any], step: str) -> str:
    return render_causes(find_result(report, step) or {})


def _rounds(report: dict[str, Any]) -> str:
    columns = [
        Column("round"),
        Column("ms", fixed(2)),
        Column("% of floor", fixed(0)),
        Column("dispatch ms", fixed(2)),
        Column("compile s", fixed(1)),
    ]
    rows = []
    for name, step in report["steps"].items():
        one = step.get("result") if name.startswith("rounds: ") else None
        if one is not None:
            compiled = one.get("compile_seconds")
            seconds = None if compiled is None else sum(compiled.values())
            figures = [one["ms"], one.get("share_of_floor"), one.get("dispatch_ms"), seconds]
            rows.append([name.partition(": ")[2], *figures])
    return Table(columns, rows).to_text() if rows else ""


def _verification(report: dict[str, Any]) -> str:
    found = find_result(report, "verification")
    if not found:
        return ""
    columns = [
        Column("rows"),
        Column("ar ms", fixed(2)),
        Column("verify ms", fixed(2)),
        Column("verify/ar", fixed(2)),
        Column("tree ms", fixed(3)),
    ]
    keys = ("ar_ms", "verify_ms", "verify_over_ar", "tree_ms")
    rows = [[width, *(one[key] for key in keys)] for width, one in found.items()]
    return Table(columns, rows).to_text()


def _prefills(report: dict[str, Any]) -> str:
    found = find_result(report, "prefill")
    if not found:
        return ""
    columns = [
        Column("prefill, tokens"),
        Column("s", fixed(3)),
        Column("compile s", fixed(1)),
        Column("peak GB", fixed(1)),
    ]
    rows = [
        [
            length,
            one["seconds"],
            one["compile_seconds"],
            None if one["peak_bytes"] is None else one["peak_bytes"] / 1e9,
        ]
        for length, one in found.items()
    ]
    return Table(columns, rows).to_text()


def _profile(report: dict[str, Any]) -> str:
    found = find_result(report, "profile")
    if not found:
        return ""
    columns = [Column("kernel"), Column("us/round", fixed(1)), Column("calls", fixed(1))]
    rows = [
        [one["name"][:60], one["us"], one["count"]] for one in found["costliest"][:_SHOWN_KERNELS]
    ]
    head = f"{found['kernels']:.0f} kernels a round, {found['busy_ms']:.2f} ms busy"
    return f"{head}\n{Table(columns, rows).to_text()}"


def _skipped(report: dict[str, Any]) -> str:
    steps = report["steps"].items()
    return "\n".join(f"skipped {n}: {step['skipped']}" for n, step in steps if "skipped" in step)


def _goals(report: dict[str, Any]) -> str:
    columns = [Column("goal"), Column("bound"), Column("here", fixed(3)), Column("met")]
    verdict = {True: "yes", False: "NO", None: "-"}
    rows = [
        [goal.quantity, f"{'<=' if goal.at_most else '>='} {goal.bound:g}", value, verdict[met]]
        for goal, value, met in list_goals(report)
    ]
    return Table(columns, rows).to_text()
