"""`python -m benchmarks confidence`: how well a drafter predicts what is accepted."""

from __future__ import annotations

import argparse

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


def run(arguments: argparse.Namespace) -> int:
    """Measure and print a table."""
    from benchmarks.confidence.measure_confidence import measure_confidence, render_confidence

    values.check_folders(arguments, "json")
    params = values.load_params(arguments)
    prompts = bench_prompts.read_prompts(arguments, values.load_model_tokenizer(params.spec))
    given = bench_prompts.collect_options(arguments)
    report = measure_confidence(
        params, prompts, arguments.method, options=given, progress=values.show_progress
    )
    values.show_progress("")
    values.save_json(arguments.json, report | {"options": given, "model": arguments.model})
    print(render_confidence(report))
    return 0
