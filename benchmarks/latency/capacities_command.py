"""`python -m benchmarks capacities`: time autoregressive steps by the capacity of the caches."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from jaxspec.cli.shared import options, parse

EXAMPLE = "--arch smollm2-135m --context 120 --capacities 192,384,1024"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the study."""
    add, default = parser.add_argument, options.DEFAULT
    add("--arch", default="mini", help=f"architecture, such as qwen3-8b {default}")
    add(
        "--capacities",
        type=parse.parse_integers,
        required=True,
        help="rows of the caches, as in 128,1k",
    )
    add("--context", type=int, default=120, help=f"cached tokens of a sequence {default}")
    add("--batch", type=int, default=1, help=f"number of sequences {default}")
    options.add_dtype(parser)
    add("--layers", type=int, help="use only this many target layers, for a quick try")
    options.add_repeats(parser, 5, "samples per figure, taken in turn")
    options.add_json_file(parser)


def run(arguments: argparse.Namespace) -> tuple[Any, str]:
    """Measure, and render a table."""
    from benchmarks.latency.capacities import measure_capacities, render_capacities
    from jaxspec.bench.latency.latency_options import LatencyOptions

    names = ("arch", "batch", "dtype", "layers", "repeats")
    records = measure_capacities(
        LatencyOptions(
            **{name: getattr(arguments, name) for name in names}, contexts=(arguments.context,)
        ),
        arguments.capacities,
        progress=lambda line: print(line, file=sys.stderr, flush=True),
    )
    return records, render_capacities(records)
