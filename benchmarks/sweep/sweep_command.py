"""`python -m benchmarks sweep`: compare fixed verification budgets with a policy."""

from __future__ import annotations

import argparse
from typing import Any

from jaxspec.cli.shared import options, parse, values
from jaxspec.costs.roofline import DEVICES

EXAMPLE = "--method jetspec-best_first --budgets 1,4,16 --budget 16 --limit 2"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the study."""
    add, default = parser.add_argument, options.DEFAULT
    options.add_model(parser)
    add(
        "--method",
        default="jetspec-best_first",
        help=f"as for bench, without budget and policy {default}",
    )
    add(
        "--budget",
        type=int,
        default=32,
        help=f"largest budget, and the rows that a policy may verify {default}",
    )
    add(
        "--budgets",
        type=parse.parse_integers,
        help="fixed budgets, as in 1,4,16; 1 is autoregressive decoding "
        "(default: 1, 2, 4, 8, 12, ... up to --budget)",
    )
    add(
        "--policies",
        type=parse.parse_names,
        default=("best",),
        help="best, bastion-paper, bastion-first-decrease or bastion-code, each also with costs "
        "(+measured, +fit or +bare; else those that are kept), and with +ema: a correction after "
        "each verification (default: best)",
    )
    add(
        "--widths",
        type=parse.parse_counts,
        help="numbers of rows to compile a policy's verification for, as in 1-8,12,16; measures "
        "their costs again, and fits them if the kept ones are a fit",
    )
    add(
        "--device",
        choices=tuple(DEVICES),
        help="peak rates of +fit and +bare, from data sheets (default: measured here)",
    )
    add("--beam", action="store_true", help="also measure beams of each budget")
    options.add_scramble(parser, "the drafter")
    add(
        "--prompts",
        type=parse.parse_prompts,
        help=f"{options.PROMPT_FILE}; only first turns are used "
        "(default: the prompts of `jaxspec demo`)",
    )
    add("--limit", type=int, default=8, help=f"prompts per domain {default}")
    options.add_max_new_tokens(parser, 128)
    options.add_temperatures(parser)
    options.add_score_temperature(parser)
    options.add_seed(parser)
    options.add_repeats(parser, 3, "number of times that each method decodes each prompt")
    options.add_json_file(parser)
    options.add_plot(parser)


def run(arguments: argparse.Namespace) -> tuple[Any, str]:
    """Measure all budgets and policies and render a table."""
    from benchmarks.sweep.family import default_budgets, make_family
    from benchmarks.sweep.sweep_budgets import sweep_budgets
    from benchmarks.sweep.sweep_plot import plot_sweep
    from benchmarks.sweep.sweep_tables import render_sweep
    from jaxspec.bench.demo import DEMO_PROMPTS
    from jaxspec.bench.measure.scramble import scramble_drafter
    from jaxspec.io.text.prompt_files import read_prompts

    budgets = arguments.budgets or default_budgets(arguments.budget)
    family = make_family(
        arguments.method, budgets, arguments.budget, arguments.policies, arguments.beam
    )
    params = values.load_params(arguments)
    if arguments.scramble is not None:
        params = scramble_drafter(params, family.drafter, arguments.scramble)
    tokenizer = params.tokenizer
    names = ("max_new_tokens", "seed", "score_temperature")
    report = sweep_budgets(
        params,
        read_prompts(arguments.prompts or DEMO_PROMPTS, tokenizer, limit=arguments.limit),
        family,
        temperatures=arguments.temperature,
        repeats=arguments.repeats,
        widths=arguments.widths and tuple(sorted({1, *arguments.widths, arguments.budget})),
        device=DEVICES.get(arguments.device),
        options={name: getattr(arguments, name) for name in names},
        progress=values.show_progress,
    )
    report["settings"] = values.collect_settings(arguments, "json", "plot")
    if arguments.plot:
        plot_sweep(report, arguments.plot)
    return report, render_sweep(report)
