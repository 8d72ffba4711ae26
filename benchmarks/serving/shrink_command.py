"""`python -m benchmarks shrink`: what a batch gains that leaves out its finished sequences."""

from __future__ import annotations

import argparse
from typing import Any

from jaxspec.cli.bench.serve import add_engine, read_token_ids
from jaxspec.cli.shared import options, parse, values

EXAMPLE = "smollm2-135m --drafter ar --batches 8 --repeats 5"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the study."""
    add, default = parser.add_argument, options.DEFAULT
    options.add_model(parser)
    add(
        "--batches",
        type=parse.parse_counts,
        default=(8,),
        help="prompts that decode together (default: 8)",
    )
    add("--budget", type=int, default=8, help=f"rows of a text in a drafted round {default}")
    add("--temperature", type=float, default=0.0, help=f"0 is greedy {default}")
    options.add_seed(parser)
    add_engine(parser)
    options.add_repeats(parser, 5, "number of batches that are decoded in both ways, in turns")
    options.add_json_file(parser)


def run(arguments: argparse.Namespace) -> tuple[Any, str]:
    """Measure, and render a table."""
    from benchmarks.serving.shrink import compare_shrinking, render_shrinking

    params = values.load_params(arguments)
    drafter = values.choose_drafter(arguments) or params.spec.default_drafter
    drafts = {} if drafter == "ar" else {"budget": arguments.budget}
    records = compare_shrinking(
        params,
        read_token_ids(arguments, params),
        arguments.batches,
        repeats=arguments.repeats,
        progress=values.show_progress,
        drafter=drafter,
        max_new_tokens=arguments.max_new_tokens,
        capacity=arguments.capacity,
        temperature=arguments.temperature,
        seed=arguments.seed,
        **drafts,
    )
    report = {"settings": values.collect_settings(arguments, "json"), "records": records}
    return report, render_shrinking(records)
