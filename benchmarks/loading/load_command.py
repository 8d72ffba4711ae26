"""`python -m benchmarks load`: time the load of a checkpoint with random weights."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from jaxspec.cli.shared import options

EXAMPLE = "--gigabytes 8 --shards 4 --json load.json"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the study."""
    add, default = parser.add_argument, options.DEFAULT
    add("--gigabytes", type=float, default=8.0, help=f"size of the checkpoint {default}")
    add("--shards", type=int, default=4, help=f"number of its files {default}")
    add(
        "--dtype",
        choices=options.DTYPES,
        default="bfloat16",
        help=f"dtype to load the weights as; they are stored as bfloat16 {default}",
    )
    options.add_devices(parser)
    options.add_repeats(parser, 3, "number of loads, each in a new process")
    add(
        "--folder",
        type=Path,
        metavar="DIR",
        help="write the checkpoint below this folder, and delete it afterwards "
        "(default: the folder of temporary files)",
    )
    options.add_json_file(parser)


def run(arguments: argparse.Namespace) -> tuple[Any, str]:
    """Measure, and render a table."""
    from benchmarks.loading.measure_load import measure_load, render_load

    report = measure_load(
        arguments.gigabytes,
        arguments.shards,
        arguments.dtype,
        arguments.repeats,
        arguments.folder,
        1 if arguments.tp is None else arguments.tp,
        progress=lambda line: print(line, file=sys.stderr, flush=True),
    )
    return report, render_load(report)
