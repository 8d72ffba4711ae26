"""`jaxspec bench confidence`: how well a drafter predicts what is accepted."""

from __future__ import annotations

import argparse

from jaxspec.cli import bench_prompts, options, values


def add_command(commands: options.Commands) -> None:
    """Add the command to the parser of `bench`."""
    parser = options.add_parser(
        commands,
        "confidence",
        run,
        "compare the probabilities that a drafter gives its tokens with what the target accepts",
        "jaxspec bench confidence --method dspark --limit 4",
    )
    add = parser.add_argument
    options.add_model(parser)
    add("--method", required=True, help="name of the drafter")
    bench_prompts.add_prompts(parser)
    bench_prompts.add_sampling(parser)
    options.add_json_file(parser)


def run(arguments: argparse.Namespace) -> int:
    """Measure and print a table."""
    from jaxspec.bench.confidence.measure_confidence import measure_confidence, render_confidence

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
