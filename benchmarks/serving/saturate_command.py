"""`python -m benchmarks saturate`: what the serving engine adds to the decoding loop of a full
batch.
"""

from __future__ import annotations

import argparse
from typing import Any

from jaxspec.cli.bench.serve import add_engine, read_token_ids
from jaxspec.cli.shared import options, parse, values
from jaxspec.serve.scheduling.pace import VISIT_SECONDS

EXAMPLE = "--drafter dflash --batches 1,4 --repeats 5"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the study."""
    options.add_model(parser)
    parser.add_argument(
        "--batches",
        type=parse.parse_counts,
        default=(1, 4, 8),
        help="texts that decode together (default: 1,4,8)",
    )
    add_engine(parser)
    parser.add_argument(
        "--budget",
        type=int,
        default=16,
        help=f"rows of a text in a drafted round of both {options.DEFAULT}",
    )
    parser.add_argument(
        "--visit-seconds",
        type=float,
        default=VISIT_SECONDS,
        metavar="S",
        help=f"length of the engine's visits {options.DEFAULT}",
    )
    options.add_repeats(parser, 5, "number of times that both decode each batch, in turns")
    options.add_json_file(parser)


def run(arguments: argparse.Namespace) -> tuple[Any, str]:
    """Measure, and render a table."""
    from benchmarks.serving.saturate import render_saturation, saturate

    params = values.load_params(arguments)
    records = saturate(
        params,
        read_token_ids(arguments, params),
        arguments.batches,
        max_new_tokens=arguments.max_new_tokens,
        budget=arguments.budget,
        capacity=arguments.capacity,
        repeats=arguments.repeats,
        visit_seconds=arguments.visit_seconds,
        progress=values.show_progress,
    )
    report = {"settings": values.collect_settings(arguments, "json"), "records": records}
    return report, render_saturation(records)
