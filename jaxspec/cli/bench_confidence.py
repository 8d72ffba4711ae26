"""`jaxspec bench confidence`: how well a drafter predicts what is accepted."""

from __future__ import annotations

import argparse
from pathlib import Path

from jaxspec.cli import options, values


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
    add("--prompts", type=Path, help=f"{options.PROMPT_FILE} (default: those of `jaxspec demo`)")
    add("--limit", type=int, help="prompts per domain (default: all)")
    options.add_chat(parser)
    options.add_max_new_tokens(parser)
    add("--temperature", type=float, default=0.0, help=f"0 is greedy decoding {options.DEFAULT}")
    add("--seed", type=int, default=0, help=f"of sampling {options.DEFAULT}")
    options.add_json_file(parser)


def run(arguments: argparse.Namespace) -> int:
    """Measure and print a table."""
    from jaxspec.bench.confidence.measure_confidence import measure_confidence, render_confidence
    from jaxspec.bench.demo import DEMO_PROMPTS, DEMO_QUESTIONS
    from jaxspec.bench.measure.prompt_files import read_prompts
    from jaxspec.zoo.places import PACKAGED

    values.check_folders(arguments, "json")
    params = values.load_params(arguments)
    prompts = read_prompts(
        arguments.prompts or (DEMO_QUESTIONS if arguments.model in PACKAGED else DEMO_PROMPTS),
        values.load_model_tokenizer(params.spec),
        limit=arguments.limit,
        chat=values.read_chat(arguments),
    )
    given = {name: getattr(arguments, name) for name in ("max_new_tokens", "temperature", "seed")}
    report = measure_confidence(
        params, prompts, arguments.method, options=given, progress=values.show_progress
    )
    values.show_progress("")
    values.save_json(arguments.json, report | {"options": given, "model": arguments.model})
    print(render_confidence(report))
    return 0
