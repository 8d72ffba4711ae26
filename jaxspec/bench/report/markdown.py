"""Turn a benchmark's JSON into a Markdown report with pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxspec.bench.report.definitions import DEFINITIONS, measure_acceptance
from jaxspec.bench.report.exports import file_name
from jaxspec.bench.report.table import NOTHING, Column, Table, fixed, tabulate
from jaxspec.io.text.prompt_files import ALL_DOMAINS


def _show_bounds(bounds: Sequence[float] | None) -> str:
    return " – ".join(map(fixed(2), bounds)) if bounds else NOTHING


_COLUMNS = (
    Column("method"),
    Column("tok/s", fixed(1)),
    Column("speed-up", fixed(2)),
    Column("95 %", _show_bounds),
    Column("acceptance, with bonus", fixed(2)),
    Column("95 %", _show_bounds),
    Column("ms/round", fixed(2)),
    Column("= ar"),
)


def write_report(report: dict[str, Any], folder: Path) -> Path:
    """Make a folder and write `report.md` and its pictures to it; needs matplotlib.

    Args:
      report: JSON of `jaxspec bench --json`.

    Returns:
      The path of `report.md`.

    Raises:
      ValueError: the JSON is not a report of this command.
    """
    results = report.get("results") if isinstance(report, dict) else None
    if not (isinstance(results, list) and results):
        raise ValueError(
            "this JSON holds no results of a benchmark: give a file that `jaxspec bench --json` "
            "wrote"
        )
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "report.md"
    path.write_text("\n".join(_write_lines(report, folder)), encoding="utf-8")
    return path


def _write_lines(report: dict[str, Any], folder: Path) -> list[str]:
    """Draw a benchmark's pictures into a folder and make the lines of its report."""
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
        whole = [record for record in records if record["domain"] == ALL_DOMAINS]
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
                _tabulate_speeds([r for r in records if r["domain"] == domain]).to_markdown(),
                "",
            ]
        lines += [
            "### Acceptance by position",
            "",
            f"![Share of rounds by accepted tokens](acceptance-{file_name(at)}.png)",
            "",
            _tabulate_positions(whole).to_markdown(),
            "",
        ]
        lines += [
            "### The same by the field's definitions, all domains",
            "",
            _tabulate_definitions(whole).to_markdown(),
            "",
        ]
    return [
        *lines,
        "## What the columns are",
        "",
        *(f"- **{one.name}**: {one.line}." for one in DEFINITIONS),
        "",
    ]


def _derived(record: dict[str, Any]) -> dict[str, Any]:
    """Add the figures that follow from a record's histogram; older files lack them."""
    if "accept_hist" not in record:
        return record
    found = measure_acceptance([record["accept_hist"]], record["drafted"])
    # The other figures need every prompt's own histogram.
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
    lines.append(tabulate(("", ""), list(about.items())).to_markdown())
    notes = (
        "Speeds are tokens over seconds after the prefill, summed over the prompts; methods took "
        "turns within each prompt. "
        "Intervals are of 95 %, by a paired bootstrap over questions: how far other prompts might "
        "move a figure, not how far the machine's speed might."
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
    return f"{'All domains' if domain == ALL_DOMAINS else domain} ({questions} question{'s' * (questions != 1)}{turns})"


def _tabulate_speeds(records: Sequence[dict[str, Any]]) -> Table:
    return Table(
        _COLUMNS,
        [
            [
                _code(record["method"]),
                record["tokens_per_second"],
                record["speedup"],
                record.get("speedup_ci"),
                record["mean_acceptance_length"],
                record.get("mean_acceptance_length_ci"),
                record["ms_per_round"],
                "yes" if record["identical_to_ar"] else f"**no** ({record['differing_prompts']})",
            ]
            for record in records
        ],
    )


def _tabulate_definitions(records: Sequence[dict[str, Any]]) -> Table:
    columns = [Column("method"), *(Column(one.name, _show_figure) for one in DEFINITIONS)]
    return Table(
        columns,
        [
            [_code(record["method"]), *(record.get(one.key) for one in DEFINITIONS)]
            for record in records
        ],
    )


def _tabulate_positions(records: Sequence[dict[str, Any]]) -> Table:
    """Tabulate acceptance by depth: α_k over all rounds, and over those that accepted k - 1."""
    ways = {"": "α_k", "_conditional": "α_k given k - 1"}
    rows = [
        [_code(record["method"]), shown, *record.get(f"acceptance_rate_per_pos{way}", ())]
        for record in records
        for way, shown in ways.items()
        if record["method"] != "ar"
    ]
    most = max(map(len, rows), default=2)
    columns = [
        Column("method"),
        Column(""),
        *(Column(f"{k}", fixed(2)) for k in range(1, most - 1)),
    ]
    return Table(columns, [[*row, *[None] * (most - len(row))] for row in rows])


def _show_figure(value: float | Sequence[float | None] | None) -> str:
    if isinstance(value, list | tuple):
        return " ".join(map(fixed(2), value)) or NOTHING
    return fixed(2)(value)


def _code(name: str) -> str:
    return f"`{name}`"
