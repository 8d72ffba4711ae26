"""`python -m benchmarks scores`: fit a drafter's score temperature."""

from __future__ import annotations

import argparse
from typing import Any

from jaxspec.cli.bench import prompts as bench_prompts
from jaxspec.cli.shared import options, values

EXAMPLE = "--method dspark-lattice@16 --prompts FILE --limit 4"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the study."""
    add = parser.add_argument
    options.add_model(parser)
    add("--method", required=True, help="drafter, builder and budget, as for bench")
    add("--grid", default="0.3,0.4,0.5,0.6,0.8,1", help=f"numbers to try {options.DEFAULT}")
    bench_prompts.add_prompts(parser)
    bench_prompts.add_sampling(parser)
    options.add_json_file(parser)


def run(arguments: argparse.Namespace) -> tuple[Any, str]:
    """Measure, and render a table."""
    from benchmarks.confidence.fit_scores import fit_scores, render_scores
    from jaxspec.bench.measure.methods import parse_methods

    grid = values.parse_numbers(arguments, "grid")
    params = values.load_params(arguments)
    method = parse_methods(arguments.method, budget=16, spec=params.spec)[-1]
    if method.options["drafter"] == "ar" or method.options.get("policy"):
        raise ValueError(f"{arguments.method!r} scores no paths: give a drafted method, no policy")
    prompts = bench_prompts.read_prompts(arguments, params.tokenizer)
    given = bench_prompts.collect_options(arguments)
    report = fit_scores(
        params, prompts, method, grid=grid, options=given, progress=values.show_progress
    )
    return report | {"options": given, "model": arguments.model}, render_scores(report)
