"""What `jaxspec bench` writes beside its own JSON, and the subcommand `bench report`."""

from __future__ import annotations

import argparse
import importlib
import json
from pathlib import Path
from typing import Any

from jaxspec.cli import options as cli_options

OUTPUTS = ("json", "spec_bench", "vllm")


def add_outputs(bench: argparse.ArgumentParser) -> None:
    """The options of `bench` that name files to write."""
    add = bench.add_argument
    add("--json", type=Path, metavar="OUT.json", help="write settings and results here")
    add(
        "--spec-bench",
        type=Path,
        metavar="OUT.jsonl",
        help="write the answers as Spec-Bench's scripts read them, one file a method: OUT-ar.jsonl and so on",
    )
    add(
        "--vllm",
        type=Path,
        metavar="OUT.json",
        help="write figures under vLLM's names; OUT.prom: as Prometheus reads them",
    )
    add(
        "--report",
        type=Path,
        metavar="DIR",
        help="write report.md with pictures into this folder (needs matplotlib)",
    )


def add_commands(commands) -> None:
    """Register `report` with argparse's `commands` of `bench`."""
    report = commands.add_parser(
        "report", help="make a Markdown report with pictures of what `bench --json` wrote"
    )
    report.set_defaults(run=_report)
    report.add_argument(
        "result",
        type=Path,
        metavar="RESULT.json",
        help="from `bench --json` or `bench sweep --json`",
    )
    report.add_argument(
        "--sweep",
        type=Path,
        metavar="SWEEP.json",
        help="from `bench sweep --json`, for a section on it",
    )
    report.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="folder to write report.md into"
    )


def check_outputs(arguments: argparse.Namespace) -> None:
    """Refuse files that could not be written, before anything is measured.

    Raises:
      FileNotFoundError: a folder that is not there.
      ModuleNotFoundError: a report without matplotlib.
    """
    cli_options.check_folders(arguments, *OUTPUTS)
    if arguments.report:
        importlib.import_module("matplotlib")


class Kept:
    """Runs and their prompts by temperature, as `jaxspec.bench.benchmark.benchmark` hands them to `keep`."""

    def __init__(self):
        self.found: dict[float, tuple[list, list]] = {}

    def __call__(self, temperature: float, prompts: list, runs: list) -> None:
        """Add a group's runs."""
        self.found.setdefault(temperature, (prompts, []))[1].extend(runs)


def write_outputs(
    arguments: argparse.Namespace, report: dict[str, Any], kept: Kept, tokenizer
) -> None:
    """Write the files that the options name.

    Args:
      report: of `jaxspec.bench.benchmark`. tokenizer: the model's, or None: answers are token ids
        then.
    """
    from jaxspec.bench.report.exports import make_spec_bench, write_spec_bench, write_vllm
    from jaxspec.bench.report_folder import write_report_folder

    model = Path(arguments.model).name
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if arguments.vllm:
        write_vllm(arguments.vllm, report["results"], model)
    if arguments.spec_bench:
        decode = tokenizer.decode if tokenizer else lambda ids: " ".join(map(str, ids))
        for temperature, (prompts, runs) in kept.found.items():
            several = f"-T{temperature:g}" if len(kept.found) > 1 else ""
            path = arguments.spec_bench.with_stem(f"{arguments.spec_bench.stem}{several}")
            write_spec_bench(path, make_spec_bench(prompts, runs, model, decode))
    if arguments.report:
        print(f"wrote {write_report_folder(report, arguments.report)}")


def _report(arguments: argparse.Namespace) -> int:
    from jaxspec.bench.report_folder import write_report_folder

    sweep = None if arguments.sweep is None else _json(arguments.sweep)
    print(f"wrote {write_report_folder(_json(arguments.result), arguments.out, sweep)}")
    return 0


def _json(path: Path):
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{path} is not JSON ({error.msg}): give a file that `jaxspec bench --json` wrote"
        ) from None
