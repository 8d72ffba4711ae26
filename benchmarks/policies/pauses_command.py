"""`python -m benchmarks pauses`: what other rules of the controller's pauses would cost."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from jaxspec.cli.bench import prompts as bench_prompts
from jaxspec.cli.shared import options, values

COSTS = "times of a drafted round to assume, besides one that was measured, in rounds of ar"


EXAMPLE = "mini --method jetspec-chain@4 --limit 1 --max-new-tokens 32"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the study."""
    add = parser.add_argument
    options.add_model(parser)
    add("--method", help="drafter, builder and budget to record, as for bench")
    add("--recorded", help="replay the files of earlier runs' --json instead, with commas")
    add("--rules", default="", help="rules to compare with the default's, as the table names them")
    add("--costs", default="1.15,1.3,1.45,1.7,2.1", help=f"{COSTS} {options.DEFAULT}")
    bench_prompts.add_prompts(parser)
    bench_prompts.add_sampling(parser)
    options.add_json_file(parser)


def run(arguments: argparse.Namespace) -> tuple[Any, str]:
    """Record or read rounds, replay them and render a table."""
    from benchmarks.policies import compare_pauses as pauses

    costs = values.parse_numbers(arguments, "costs")
    rules = [pauses.RULE, *(pauses.parse_rules(arguments.rules) if arguments.rules else ())]
    if bool(arguments.method) == bool(arguments.recorded):
        raise ValueError("give either --method, to record rounds, or --recorded, to replay them")
    if arguments.recorded:
        record = pauses.read_records([Path(one) for one in arguments.recorded.split(",")])
    else:
        record = _record(arguments)
        costs = [record["cost"], *costs]
    report = pauses.report_pauses(record, rules=rules, costs=costs)
    return report, pauses.render_pauses(report)


def _record(arguments: argparse.Namespace) -> dict[str, Any]:
    from benchmarks.policies.compare_pauses import record_texts
    from jaxspec.bench.measure.methods import parse_methods

    params = values.load_params(arguments)
    method = parse_methods(arguments.method, budget=8, spec=params.spec)[-1]
    if method.options["drafter"] == "ar" or method.options.get("policy"):
        raise ValueError(f"{arguments.method!r}: give a drafted method without a policy")
    given = bench_prompts.collect_options(arguments)
    record = record_texts(
        params,
        bench_prompts.read_prompts(arguments, params.tokenizer),
        method,
        options=given,
        progress=values.show_progress,
    )
    return record | {"options": given, "model": arguments.model}
