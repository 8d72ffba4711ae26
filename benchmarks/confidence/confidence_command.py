"""`python -m benchmarks confidence`: how well a drafter predicts what is accepted."""

from __future__ import annotations

import argparse
from typing import Any

from jaxspec.cli import options, values
from jaxspec.cli.bench import prompts as bench_prompts

EXAMPLE = "--method dspark --limit 4"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the study."""
    add = parser.add_argument
    options.add_model(parser)
    add("--method", required=True, help="name of the drafter")
    bench_prompts.add_prompts(parser)
    bench_prompts.add_sampling(parser)
    options.add_json_file(parser)


def run(arguments: argparse.Namespace) -> tuple[Any, str]:
    """Measure, and render a table."""
    from benchmarks.confidence.measure_confidence import measure_confidence, render_confidence

    params = values.load_params(arguments)
    prompts = bench_prompts.read_prompts(arguments, values.load_model_tokenizer(params.spec))
    given = bench_prompts.collect_options(arguments)
    report = measure_confidence(
        params, prompts, arguments.method, options=given, progress=values.show_progress
    )
    return report | {"options": given, "model": arguments.model}, render_confidence(report)
