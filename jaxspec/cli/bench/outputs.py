"""Files that `jaxspec bench` writes."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxspec.cli.shared import options, values
from jaxspec.core.runtime import distribution

if TYPE_CHECKING:
    from jaxspec.bench.measure.decodes import Run
    from jaxspec.io.text.prompt_files import LabelledPrompt
    from jaxspec.io.text.tokenizer import Tokenizer

FILES = ("json", "spec_bench", "vllm")
OUTPUTS = (*FILES, "report")


def add_outputs(parser: argparse.ArgumentParser) -> None:
    """Add the options of `bench` that name files to write."""
    add = parser.add_argument
    options.add_json_file(parser)
    add(
        "--spec-bench",
        type=Path,
        metavar="OUT.jsonl",
        help="write answers in Spec-Bench's form, one file per method (OUT-ar.jsonl, ...)",
    )
    add(
        "--vllm",
        type=Path,
        metavar="OUT.json",
        help="write counts under vLLM's metric names; OUT.prom writes them for Prometheus",
    )
    add(
        "--report",
        type=Path,
        metavar="DIR",
        help="write report.md with plots to this folder; needs matplotlib",
    )


def check_outputs(arguments: argparse.Namespace) -> None:
    """Refuse files that could not be written, before anything is measured.

    Raises:
      OSError: the folder of a file does not exist, or the file is a folder.
      ImportError: a report is wanted, and matplotlib is not installed.
    """
    values.check_folders(arguments, *FILES)
    if arguments.report:
        distribution.require("bench", "matplotlib")


class KeptRuns:
    """Collects prompts and runs by temperature: the `keep` callback of `benchmark`.

    Attributes:
      found: {temperature: (prompts, runs)}.
    """

    def __init__(self) -> None:
        self.found: dict[float, tuple[list[LabelledPrompt], list[Run]]] = {}

    def __call__(self, temperature: float, prompts: list[LabelledPrompt], runs: list[Run]) -> None:
        """Add the runs of one group of methods."""
        self.found.setdefault(temperature, (prompts, []))[1].extend(runs)


def write_outputs(
    arguments: argparse.Namespace,
    report: dict[str, Any],
    kept: KeptRuns,
    tokenizer: Tokenizer | None,
) -> None:
    """Write the files that the options name.

    Args:
      report: result of `jaxspec.bench.benchmark.benchmark`.
      kept: the runs that it kept.
      tokenizer: the model's tokenizer; without one, answers are written as token ids.
    """
    from jaxspec.bench.report.exports import make_spec_bench, write_spec_bench, write_vllm
    from jaxspec.bench.report.markdown import write_report

    model = Path(arguments.model).name
    values.save_json(arguments.json, report)
    if arguments.vllm:
        write_vllm(arguments.vllm, report["results"], model)
    if arguments.spec_bench:
        decode = tokenizer.decode if tokenizer else lambda ids: " ".join(map(str, ids))
        for temperature, (prompts, runs) in kept.found.items():
            several = f"-T{temperature:g}" if len(kept.found) > 1 else ""
            path = arguments.spec_bench.with_stem(f"{arguments.spec_bench.stem}{several}")
            write_spec_bench(path, make_spec_bench(prompts, runs, model, decode))
    if arguments.report:
        print(f"wrote {write_report(report, arguments.report)}")
