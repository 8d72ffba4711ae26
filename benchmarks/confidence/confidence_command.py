"""`python -m benchmarks confidence`: how well a drafter predicts what is accepted."""

from __future__ import annotations

import argparse
from typing import Any

from jaxspec.cli.bench import prompts as bench_prompts
from jaxspec.cli.shared import options, values

EXAMPLE = "mini --drafter dspark --limit 4"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the study."""
    options.add_model(parser)
    bench_prompts.add_prompts(parser)
    bench_prompts.add_sampling(parser)
    options.add_json_file(parser)


def run(arguments: argparse.Namespace) -> tuple[Any, str]:
    """Measure, and render a table."""
    from benchmarks.confidence.measure_confidence import measure_confidence, render_confidence

    params = values.load_params(arguments)
    prompts = bench_prompts.read_prompts(arguments, params.tokenizer)
    given = bench_prompts.collect_options(arguments)
    report = measure_confidence(
        params, prompts, params.spec.default_drafter, options=given, progress=values.show_progress
    )
    return report | {"options": given, "model": arguments.model}, render_confidence(report)
