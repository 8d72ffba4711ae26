"""`python -m benchmarks batches`: budgets and rules at growing numbers of slots, on a GPU you don't
have.
"""

from __future__ import annotations

import argparse
from typing import Any

from jaxspec.cli.bench.serve import read_token_ids
from jaxspec.cli.shared import options, parse, values

EXAMPLE = "--drafter jetspec --budget 128 --batches 1,4,16,64"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the study."""
    add, default = parser.add_argument, options.DEFAULT
    options.add_model(parser)
    add(
        "--prompts",
        type=parse.parse_file,
        help=f"{options.PROMPT_FILE} (default: the prompts of `jaxspec demo`)",
    )
    add("--limit", type=int, default=24, help=f"prompts that are read {default}")
    add("--tokens", type=int, default=48, help=f"trees that are recorded of each {default}")
    options.add_budget(parser, 128)
    add(
        "--batches",
        type=parse.parse_counts,
        default=(1, 2, 4, 8, 16, 32, 64, 128),
        help="numbers of slots (default: 1,2,4,8,16,32,64,128)",
    )
    add("--arch", default="qwen3-8b", help=f"target whose rounds are modelled {default}")
    add("--device", default="h100", help=f"device of the modelled rounds {default}")
    add("--context", type=int, default=1024, help=f"cached tokens of each slot {default}")
    options.add_json_file(parser)


def run(arguments: argparse.Namespace) -> tuple[Any, str]:
    """Record trees, replay engines and render a table."""
    from benchmarks.adapt.modelled import make_model
    from benchmarks.serving.model_batches import model_batches, render_batches
    from benchmarks.serving.recorded_trees import record_trees
    from jaxspec.call.arguments import check_budget, check_count

    for name in ("limit", "tokens", "context"):
        check_count(name, getattr(arguments, name))
    check_budget(arguments.budget)
    make_model(arguments.arch, arguments.device)
    params = values.load_params(arguments)
    if not params.spec.drafters:
        raise ValueError("batches needs a drafter: give --drafter")
    trees = record_trees(
        params,
        read_token_ids(arguments, params)[: arguments.limit],
        tokens=arguments.tokens,
        budget=arguments.budget,
        progress=values.show_progress,
    )
    records = model_batches(
        trees,
        arguments.batches,
        arch=arguments.arch,
        device=arguments.device,
        context=arguments.context,
        progress=values.show_progress,
    )
    report = {"settings": values.collect_settings(arguments, "json"), "records": records}
    return report, render_batches(records)
