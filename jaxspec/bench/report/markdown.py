"""A benchmark's JSON as a Markdown report with pictures beside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxspec.bench.report.definitions import DEFINITIONS, acceptance
from jaxspec.bench.report.formats import file_name
from jaxspec.bench.report.summary import ALL
from jaxspec.bench.report.table import show

_COLUMNS = (
    "method",
    "tok/s",
    "speed-up",
    "95 %",
    "acceptance, bonus in",
    "95 %",
    "ms/round",
    "= ar",
)


def write_report(report: dict[str, Any], folder: Path, sweep: dict[str, Any] | None = None) -> Path:
    """Write `report.md` and its pictures into a folder, which is made; needs matplotlib.

    Args:
      report: what `jaxspec bench --json` wrote, or `jaxspec bench sweep --json`.
      sweep: what the latter wrote, for a section of a report on the former.

    Returns:
      The path of `report.md`.

    Raises:
      ValueError: not such reports.
    """
    of_sweep = sweep is None and _holds(report, "temperatures")
    if not of_sweep and not _holds(report, "results"):
        raise ValueError(
            "this JSON holds no results of a benchmark: give a file that `jaxspec bench --json` wrote"
        )
    if sweep is not None and not _holds(sweep, "temperatures"):
        raise ValueError(
            "this JSON holds no sweep: give a file that `jaxspec bench sweep --json` wrote"
        )
    folder.mkdir(parents=True, exist_ok=True)
    if of_sweep:
        lines = _sweep(report, folder, "#")
    else:
        lines = _benchmark(report, folder, [] if sweep is None else _sweep(sweep, folder, "##"))
    path = folder / "report.md"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def _holds(report, key: str) -> bool:
    return isinstance(report, dict) and isinstance(report.get(key), list) and bool(report[key])


def _benchmark(report: dict[str, Any], folder: Path, sweep: list[str]) -> list[str]:
    from jaxspec.view.plots import plot_acceptance, plot_speedups

    lines = _head(report)
    for temperature in dict.fromkeys(
        record.get("temperature", 0.0) for record in report["results"]
    ):
        records = [
            _derived(record)
            for record in report["results"]
            if record.get("temperature", 0.0) == temperature
        ]
        whole = [record for record in records if record["domain"] == ALL]
        at = f"T{temperature:g}"
        for name, figure in (
            ("speedups", plot_speedups(records)),
            ("acceptance", plot_acceptance(whole)),
        ):
            figure.savefig(folder / f"{name}-{file_name(at)}.png", dpi=120)
        lines += [f"## Temperature {temperature:g}", "", _equality(whole), ""]
        lines += [
            f"![Speed over ar by domain, with 95 % intervals](speedups-{file_name(at)}.png)",
            "",
        ]
        for domain in dict.fromkeys(record["domain"] for record in records):
            lines += [
                f"### {_title(domain, records)}",
                "",
                *_speeds([r for r in records if r["domain"] == domain]),
                "",
            ]
        lines += [
            "### Acceptance by position",
            "",
            f"![Share of rounds by accepted tokens](acceptance-{file_name(at)}.png)",
            "",
        ]
        lines += [
            "### The same by the field's definitions, all domains",
            "",
            *_definitions(whole),
            "",
        ]
    return [
        *lines,
        *sweep,
        "## What the columns are",
        "",
        *(f"- **{one.name}**: {one.line}." for one in DEFINITIONS),
        "",
    ]


def _sweep(sweep: dict[str, Any], folder: Path, level: str) -> list[str]:
    from jaxspec.bench.sweep.plots import plot
    from jaxspec.bench.sweep.report import render

    plot(sweep, folder / "sweep.png")
    about = (
        "Left: speed-up over the budget, each policy's star at its mean of rows. Middle: predicted against "
        "measured time of rounds. Right: expected against committed tokens of rounds."
    )
    return [
        f"{level} Budget sweep",
        "",
        "![Budgets, times and expectations](sweep.png)",
        "",
        about,
        "",
        "```text",
        render(sweep),
        "```",
        "",
    ]


def _derived(record: dict[str, Any]) -> dict[str, Any]:
    """A record with the figures that its histogram gives, which older files have not."""
    if "accept_hist" not in record:
        return record
    found = acceptance([record["accept_hist"]], record["drafted"])
    # The others need every prompt's own histogram.
    return {
        key: found[key] for key in found if "rate" in key or key == "mean_accepted_length"
    } | record


def _head(report: dict[str, Any]) -> list[str]:
    settings, device = report.get("settings", {}), report["device"]
    versions = ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    quantized = f", {report['quantize']} weights" if report.get("quantize") else ""
    about = {
        "device": f"{device['kind']} ({device['count']} × {device['platform']}, {device['cpus']} CPUs)",
        "weights": f"{report['dtype']}{quantized}",
        "versions": versions,
        "prompts": f"{settings.get('prompts')}, at most {settings.get('limit')} a domain, chat {settings.get('chat')}",
        "tokens": f"{report['options'].get('max_new_tokens')} at most, {report['repeats']} repeats, medians",
    }
    lines = [f"# Benchmark of {Path(settings.get('model', 'a model')).name}", ""]
    lines += _table(("", ""), [(name, value) for name, value in about.items()])
    notes = (
        "Speeds are tokens over seconds after the prefill, summed over the prompts; methods took turns within each prompt. "
        "Intervals are of 95 %, by a paired bootstrap over questions: how far other prompts might move a figure, "
        "not how far the machine's speed might."
    )
    return [*lines, "", notes, ""]


def _equality(whole: Sequence[dict[str, Any]]) -> str:
    differing = {
        record["method"]: record["differing_prompts"]
        for record in whole
        if not record["identical_to_ar"]
    }
    prompts = max(record["prompts"] for record in whole)
    if not differing:
        return f"Every method gave the tokens of `ar` on each of the {prompts} prompts, in every repeat."
    listed = ", ".join(f"{_code(name)} on {count}" for name, count in differing.items())
    return f"**Not all tokens equal those of `ar`**: of {prompts} prompts they differ for {listed}."


def _title(domain: str, records: Sequence[dict[str, Any]]) -> str:
    first = next(record for record in records if record["domain"] == domain)
    questions = first.get("questions", first["prompts"])
    turns = f", {first['prompts']} turns" if first["prompts"] != questions else ""
    return f"{'All domains' if domain == ALL else domain} ({questions} question{'s' * (questions != 1)}{turns})"


def _speeds(records: Sequence[dict[str, Any]]) -> list[str]:
    return _table(
        _COLUMNS,
        [
            (
                _code(record["method"]),
                show(record["tokens_per_second"], 1),
                show(record["speedup"], 2),
                _interval(record.get("speedup_ci")),
                show(record["mean_acceptance_length"], 2),
                _interval(record.get("mean_acceptance_length_ci")),
                show(record["ms_per_round"], 2),
                "yes" if record["identical_to_ar"] else f"**no** ({record['differing_prompts']})",
            )
            for record in records
        ],
    )


def _definitions(records: Sequence[dict[str, Any]]) -> list[str]:
    rows = [
        (_code(record["method"]), *(_figure(record.get(one.key)) for one in DEFINITIONS))
        for record in records
    ]
    return _table(("method", *(one.name for one in DEFINITIONS)), rows)


def _figure(value: float | Sequence[float | None] | None) -> str:
    if isinstance(value, list | tuple):
        return " ".join(show(one, 2) for one in value) or "-"
    return show(value, 2)


def _interval(bounds: Sequence[float] | None) -> str:
    return f"{show(bounds[0], 2)} – {show(bounds[1], 2)}" if bounds else "-"


def _code(name: str) -> str:
    return f"`{name}`"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    body = [
        "| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |"
        for row in (head, *rows)
    ]
    return [body[0], "|" + " --- |" * len(head), *body[1:]]
