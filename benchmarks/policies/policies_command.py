"""`python -m benchmarks policies`: compare policies on one method."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxspec.cli.shared import options, parse, values

if TYPE_CHECKING:
    from jaxspec.bench.measure.methods import Method
    from jaxspec.core.params import Params
    from jaxspec.io.text.prompt_files import LabelledPrompt


EXAMPLE = "--policies none,best,svip-ltd --limit 2"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the study."""
    add, default = parser.add_argument, options.DEFAULT
    options.add_model(parser)
    add(
        "--method",
        default="eagle3-dynamic@48/d10/w6",
        help=f"as for bench, without policy {default}",
    )
    add(
        "--policies",
        default="none,best,ddd-ltd,svip-ltd,gammatune-ltd",
        help="comma-separated [LABEL=]POLICY: none, a name or folder as for generate --policy, "
        f"or several joined by + {default}",
    )
    add(
        "--prompts",
        type=parse.parse_prompts,
        help=f"{options.PROMPT_FILE}, that nothing was trained or tuned on "
        "(default: the prompts of `jaxspec demo`)",
    )
    add("--limit", type=int, default=8, help=f"prompts per domain {default}")
    options.add_max_new_tokens(parser, 128)
    options.add_temperatures(parser)
    options.add_seed(parser)
    options.add_repeats(parser, 5, "number of times that each policy decodes each prompt")
    add(
        "--against",
        metavar="LABEL",
        help="compare the others with this contender too, with paired intervals",
    )
    add(
        "--times",
        type=Path,
        help="costs of rounds that the policies were trained with, written by "
        "`python -m jaxspec.training.rl.times`; warns if a policy was trained with others "
        "(default: measure them)",
    )
    options.add_json_file(parser)


def run(arguments: argparse.Namespace) -> tuple[Any, str]:
    """Compare the policies at every temperature and render a table."""
    from benchmarks.policies.policy_tables import render_policies
    from jaxspec.bench.demo import DEMO_PROMPTS
    from jaxspec.bench.measure.methods import parse_methods
    from jaxspec.io.text.prompt_files import read_prompts

    params = values.load_params(arguments)
    method = parse_methods(arguments.method, budget=32, spec=params.spec)[-1]
    if method.options["drafter"] == "ar" or method.options.get("policy"):
        raise ValueError(
            f"cannot compare policies on {arguments.method!r}: give a drafted method without policy"
        )
    tokenizer = params.tokenizer
    prompts = read_prompts(arguments.prompts or DEMO_PROMPTS, tokenizer, limit=arguments.limit)
    found, report = [], {}
    for temperature in arguments.temperature:
        report = _compare(arguments, params, prompts, method, temperature)
        parts = {name: report.pop(name) for name in ("times", "results")}
        found.append({"temperature": temperature} | parts)
    report |= {"method": method.name, "policies": arguments.policies, "temperatures": found}
    return report, render_policies(report)


def _compare(
    arguments: argparse.Namespace,
    params: Params,
    prompts: list[LabelledPrompt],
    method: Method,
    temperature: float,
) -> dict[str, Any]:
    """Compare the policies at one temperature."""
    from benchmarks.policies.compare_policies import compare_policies, make_contenders
    from jaxspec.costs.files import load_costs
    from jaxspec.tuner.calibrate.by_rows import default_widths, timed
    from jaxspec.tuner.calibrate.by_steps import calibrate_steps

    given = {name: getattr(arguments, name) for name in ("max_new_tokens", "seed")}
    given["temperature"] = temperature
    times = load_costs(arguments.times) if arguments.times else None
    chosen = make_contenders(params, method, arguments.policies.split(","), given, times)
    if times is None:
        values.show_progress("measuring what rounds cost")
        settings = timed(given | method.options)
        settings.pop("budget", None)
        widths = default_widths(method.options["budget"])
        times = calibrate_steps(params, method.options["drafter"], widths, **settings)
    report = compare_policies(
        params,
        prompts,
        chosen,
        times,
        repeats=arguments.repeats,
        against=arguments.against,
        options=given,
        progress=values.show_progress,
    )
    return report
