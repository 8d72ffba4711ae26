"""The folder that `--report` and `jaxspec bench report` write: `report.md` and its pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jaxspec.bench.report.markdown import write_benchmark_lines
from jaxspec.bench.sweep import sweep_plot, sweep_tables


def write_report_folder(
    report: dict[str, Any], folder: Path, sweep: dict[str, Any] | None = None
) -> Path:
    """Make a folder and write `report.md` and its pictures to it; needs matplotlib.

    Args:
      report: JSON of `jaxspec bench --json` or `jaxspec bench sweep --json`.
      sweep: JSON of `jaxspec bench sweep --json`, for a section in the report of a benchmark.

    Returns:
      The path of `report.md`.

    Raises:
      ValueError: the JSON is not a report of these commands.
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
        lines = write_sweep_lines(report, folder, "#")
    else:
        lines = write_benchmark_lines(
            report, folder, [] if sweep is None else write_sweep_lines(sweep, folder, "##")
        )
    path = folder / "report.md"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def _holds(report, key: str) -> bool:
    return isinstance(report, dict) and isinstance(report.get(key), list) and bool(report[key])


def write_sweep_lines(sweep: dict[str, Any], folder: Path, level: str) -> list[str]:
    """Draw a sweep's picture into a folder and make the lines of its section.

    Args:
      sweep: JSON of `jaxspec bench sweep --json`.
      level: level of the heading, such as `##`.
    """
    sweep_plot.plot_sweep(sweep, folder / "sweep.png")
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
        sweep_tables.render_sweep(sweep),
        "```",
        "",
    ]
