"""The subcommand `sweep` of `jaxspec bench`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from jaxspec.cli import options as cli_options


def add_sweep(commands) -> None:
    """Register `sweep` with argparse's `commands`."""
    sweep = commands.add_parser(
        "sweep", help="fixed budgets against a policy that chooses the rows of every round"
    )
    sweep.set_defaults(run=_sweep)
    add = sweep.add_argument
    cli_options.add_model(sweep)
    add(
        "--method",
        default="jetspec-ddtree",
        help="as for bench, without budget and policy (default: %(default)s)",
    )
    add(
        "--budget",
        type=int,
        default=32,
        help="rows that a policy may verify, and the largest budget (default: %(default)s)",
    )
    add(
        "--budgets",
        type=_integers,
        help="fixed budgets, as in 1,4,16; 1 is ar (default: 1, 2, 4, 8, 12, ... up to --budget)",
    )
    add(
        "--policies",
        type=_names,
        default=("best",),
        help="best, bastion-paper or bastion-code, each also with +ema (default: best)",
    )
    add(
        "--widths",
        type=_integers,
        help="rows that a policy's verification is compiled for, 1 to --budget; times anew",
    )
    add("--beam", action="store_true", help="beams of the same budgets too, for their acceptance")
    add(
        "--scramble",
        type=int,
        metavar="SEED",
        help="put the entries of the drafter's weights in random order",
    )
    add(
        "--prompts",
        type=Path,
        help=".jsonl or .jsonl.gz, as for bench, first turns alone (default: the demonstration's)",
    )
    add("--limit", type=int, default=8, help="prompts per domain (default: %(default)s)")
    add("--max-new-tokens", type=int, default=128, help="(default: %(default)s)")
    cli_options.add_temperatures(sweep)
    add(
        "--score-temperature",
        type=float,
        help="divisor of draft scores; below 1, deeper trees (default: the drafter's own)",
    )
    add("--seed", type=int, default=0, help="(default: %(default)s)")
    add(
        "--repeats",
        type=int,
        default=3,
        help="decodes of each prompt by each method (default: %(default)s)",
    )
    add("--json", type=Path, metavar="OUT.json", help="write settings and results here")
    add("--plot", type=Path, metavar="OUT.png", help="draw them here (needs matplotlib)")


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(item.strip() for item in text.split(",") if item.strip()))


def _integers(text: str) -> tuple[int, ...]:
    return tuple(int(item) for item in _names(text))


def _sweep(arguments: argparse.Namespace) -> int:
    from jaxspec.bench import demo
    from jaxspec.bench.measure.prompt_files import read_prompts
    from jaxspec.bench.sweep.sweep_budgets import (
        default_budgets,
        make_family,
        scramble_drafter,
        sweep_budgets,
    )
    from jaxspec.bench.sweep.sweep_plot import plot_sweep
    from jaxspec.bench.sweep.sweep_tables import render_sweep
    from jaxspec.io.tokenizer import load_tokenizer

    budgets = arguments.budgets or default_budgets(arguments.budget)
    family = make_family(
        arguments.method, budgets, arguments.budget, arguments.policies, arguments.beam
    )
    cli_options.check_folders(arguments, "json", "plot")
    params = cli_options.load(arguments)
    if arguments.scramble is not None:
        params = scramble_drafter(params, family.drafter, arguments.scramble)
    tokenizer = load_tokenizer(params.spec.tokenizer) if params.spec.tokenizer else None
    report = sweep_budgets(
        params,
        read_prompts(arguments.prompts or demo.DEMO_PROMPTS, tokenizer, limit=arguments.limit),
        family,
        temperatures=arguments.temperature,
        repeats=arguments.repeats,
        widths=arguments.widths,
        options={
            name: getattr(arguments, name)
            for name in ("max_new_tokens", "seed", "score_temperature")
        },
        progress=cli_options.progress,
    )
    # Files go by name, as in the reports of bench.
    given = {
        key: value for key, value in vars(arguments).items() if key not in ("run", "json", "plot")
    }
    report["settings"] = {
        key: value.name if isinstance(value, Path) else value for key, value in given.items()
    }
    if arguments.json:
        arguments.json.write_text(json.dumps(report) + "\n", encoding="utf-8")
    print(render_sweep(report))
    if arguments.plot:
        plot_sweep(report, arguments.plot)
    return 0
