"""`python -m benchmarks first`: time the first call of a process."""

from __future__ import annotations

import argparse
from typing import Any

from jaxspec.cli.shared import options, values

EXAMPLE = "smollm2-135m --drafter jetspec --repeats 3"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the study."""
    add, default = parser.add_argument, options.DEFAULT
    options.add_name(parser)
    options.add_drafter(parser)
    add(
        "--methods",
        default="ar,jetspec-best_first@4,default",
        help=f"methods, as for bench {default}",
    )
    options.add_repeats(parser, 3, "processes of each method")
    add("--prompt-tokens", type=int, default=100, help=f"tokens of the prompt {default}")
    options.add_max_new_tokens(parser, 64)
    options.add_json_file(parser)


def run(arguments: argparse.Namespace) -> tuple[Any, str]:
    """Measure, and render a table."""
    from benchmarks.loading.measure_first_calls import measure_first_calls, render_first_calls

    report = measure_first_calls(
        arguments.model,
        arguments.methods,
        drafter=values.read_drafters(arguments),
        repeats=arguments.repeats,
        prompt_tokens=arguments.prompt_tokens,
        max_new_tokens=arguments.max_new_tokens,
        progress=values.show_progress,
    )
    return report, render_first_calls(report)
