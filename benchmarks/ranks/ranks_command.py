"""`python -m benchmarks ranks`: how often a drafter's first candidate is right, by place in the
tree.
"""

from __future__ import annotations

import argparse
from typing import Any

from jaxspec.cli.bench import prompts as bench_prompts
from jaxspec.cli.shared import options, values

EXAMPLE = "--drafters jetspec,eagle3 --limit 4"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the study."""
    add, default = parser.add_argument, options.DEFAULT
    options.add_model(parser)
    add("--drafters", help="comma-separated names (default: all drafters of the model)")
    bench_prompts.add_prompts(parser)
    add("--width", type=int, default=4, help=f"candidates after every node of the spine {default}")
    add("--depth", type=int, default=7, help=f"depth of the tree {default}")
    bench_prompts.add_sampling(parser)
    options.add_json_file(parser)


def run(arguments: argparse.Namespace) -> tuple[Any, str]:
    """Measure, and render a table."""
    from benchmarks.ranks.measure_ranks import list_drafters, measure_ranks, render_ranks

    params = values.load_params(arguments)
    names = list_drafters(params)
    chosen = arguments.drafters.split(",") if arguments.drafters else names
    for name in chosen:
        if name not in names:
            raise ValueError(f"{name!r} is no drafter of this model: choose of {', '.join(names)}")
    tokenizer = params.tokenizer
    prompts = bench_prompts.read_prompts(arguments, tokenizer)
    given = bench_prompts.collect_options(arguments)
    report = measure_ranks(
        params,
        prompts,
        chosen,
        width=arguments.width,
        depth=arguments.depth,
        options=given,
        progress=values.show_progress,
    )
    return report | {"options": given, "model": arguments.model}, render_ranks(report)
