"""The subcommand `policies` of `jaxspec bench`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from jaxspec.cli import options as cli_options


def add_compare(commands) -> None:
    """Register `policies` with argparse's `commands`."""
    policies = commands.add_parser(
        "policies", help="policies on one method, by a model of time and by the clock"
    )
    policies.set_defaults(run=_compare)
    add = policies.add_argument
    cli_options.add_model(policies)
    add(
        "--method",
        default="eagle3-dynamic@48/d10/w6",
        help="as for bench, without policy (default: %(default)s)",
    )
    add(
        "--policies",
        default="none,best,ddd-ltd,svip-ltd,gammatune-ltd",
        help="comma-separated [LABEL=]POLICY: none, a name or folder as of generate --policy, or several joined by + "
        "(default: %(default)s)",
    )
    add(
        "--prompts",
        type=Path,
        help="that nothing was trained or tuned on: .jsonl or .jsonl.gz, as for bench (default: the demonstration's)",
    )
    add("--limit", type=int, default=8, help="prompts per domain (default: %(default)s)")
    add("--max-new-tokens", type=int, default=128, help="(default: %(default)s)")
    cli_options.add_temperatures(policies)
    add("--seed", type=int, default=0, help="(default: %(default)s)")
    add(
        "--repeats",
        type=int,
        default=5,
        help="decodes of each prompt by each policy (default: %(default)s)",
    )
    add(
        "--against",
        metavar="LABEL",
        help="a contender that the others are compared with too, with paired intervals",
    )
    add(
        "--times",
        type=Path,
        help="round costs that policies were trained with, of `python -m training.rl.times`; a policy trained "
        "with others warns (default: measure them)",
    )
    add("--json", type=Path, metavar="OUT.json", help="write settings and results here")


def _compare(arguments: argparse.Namespace) -> int:
    from jaxspec.bench import demo
    from jaxspec.bench.calibrate import default_widths, timed
    from jaxspec.bench.calibrate_steps import calibrate_steps
    from jaxspec.bench.measure.methods import parse_methods
    from jaxspec.bench.measure.prompt_files import read_prompts
    from jaxspec.bench.policies.compare_policies import compare_policies, make_contenders
    from jaxspec.bench.policies.policy_tables import render_policies
    from jaxspec.costs.files import load_costs
    from jaxspec.io.tokenizer import load_tokenizer

    cli_options.check_folders(arguments, "json")
    params = cli_options.load(arguments)
    base = parse_methods(arguments.method, budget=32, spec=params.spec)[-1]
    if base.options["method"] == "ar" or base.options.get("policy"):
        raise ValueError(
            f"cannot compare policies on {arguments.method!r}: give a drafted method without policy"
        )
    tokenizer = load_tokenizer(params.spec.tokenizer) if params.spec.tokenizer else None
    prompts = read_prompts(arguments.prompts or demo.DEMO_PROMPTS, tokenizer, limit=arguments.limit)
    found, report, show = [], {}, cli_options.progress
    given = load_costs(arguments.times) if arguments.times else None
    for temperature in arguments.temperature:
        options = {
            "max_new_tokens": arguments.max_new_tokens,
            "temperature": temperature,
            "seed": arguments.seed,
        }
        chosen = make_contenders(params, base, arguments.policies.split(","), options, given)
        show("" if given else "measuring the times of rounds")
        settings = {
            name: value for name, value in timed(options | base.options).items() if name != "budget"
        }
        widths = default_widths(base.options["budget"])
        times = given or calibrate_steps(params, base.options["method"], widths, **settings)
        asked = {"repeats": arguments.repeats, "against": arguments.against, "options": options}
        report = compare_policies(params, prompts, chosen, times, **asked, progress=show)
        found.append(
            {
                "temperature": temperature,
                "times": report.pop("times"),
                "results": report.pop("results"),
            }
        )
        show("")
    report |= {"method": base.name, "policies": arguments.policies, "temperatures": found}
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(render_policies(report))
    return 0
