"""`python -m benchmarks gaps`: the rank-1 gap between drafter and target, in nats (JetSpec)."""

from __future__ import annotations

import argparse
from typing import Any

from jaxspec.cli.bench import prompts as bench_prompts
from jaxspec.cli.shared import options, values

EXAMPLE = "--drafters jetspec,dflash --limit 4"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the study."""
    from benchmarks.ranks.measure_gaps import BUDGET, BUILDER

    add, default = parser.add_argument, options.DEFAULT
    options.add_model(parser)
    add("--drafters", help="comma-separated names (default: all that draft a block at once)")
    bench_prompts.add_prompts(parser)
    add("--builder", default=BUILDER, help=f"of the trees {default}")
    add("--budget", type=int, default=BUDGET, help=f"rows of a tree {default}")
    bench_prompts.add_sampling(parser)
    options.add_json_file(parser)


def run(arguments: argparse.Namespace) -> tuple[Any, str]:
    """Measure, and render tables."""
    from benchmarks.ranks.measure_gaps import list_block_drafters, measure_gaps, render_gaps
    from benchmarks.ranks.measure_ranks import list_drafters

    params = values.load_params(arguments)
    names = list_drafters(params)
    chosen = arguments.drafters and arguments.drafters.split(",") or list_block_drafters(params)
    for name in chosen:
        if name not in names:
            raise ValueError(f"{name!r} is no drafter of this model: choose of {', '.join(names)}")
    given = bench_prompts.collect_options(arguments)
    report = measure_gaps(
        params,
        bench_prompts.read_prompts(arguments, params.tokenizer),
        chosen,
        builder=arguments.builder,
        budget=arguments.budget,
        options=given,
        progress=values.show_progress,
    )
    return report | {"options": given, "model": arguments.model}, render_gaps(report)
