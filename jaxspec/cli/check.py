"""`jaxspec check`: prove that jaxspec works on this device, and measure how fast."""

from __future__ import annotations

import argparse
import sys

from jaxspec.cli import options, values

WRONG = 1


def add_command(commands: options.Commands) -> None:
    """Add the command to the parser."""
    parser = options.add_parser(
        commands,
        "check",
        run,
        "check kernels, losslessness and speed on this device, the most important first",
        "jaxspec check --minutes 8 --json check.json",
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=8.0,
        help=f"begin no further measurement after this time {options.DEFAULT}",
    )
    parser.add_argument(
        "--tp",
        type=int,
        metavar="N",
        help="run texts, rounds and prefills with a target that the first N devices share "
        "(default: one device holds it)",
    )
    options.add_json_file(parser)


def run(arguments: argparse.Namespace) -> int:
    """Check, print the report; the exit status is 1 if something is wrong, not if it is slow."""
    from jaxspec.bench.check.check_goals import is_correct
    from jaxspec.bench.check.check_report import render_check
    from jaxspec.bench.check.plan_check import check_device
    from jaxspec.engine.arguments import check_positive

    check_positive("--minutes", arguments.minutes)
    values.check_folders(arguments, "json")
    report = check_device(
        arguments.minutes,
        progress=lambda line: print(line, file=sys.stderr, flush=True),
        save=lambda report: values.save_json(arguments.json, report),
        mesh=values.make_mesh(arguments.tp),
    )
    print(render_check(report))
    return 0 if is_correct(report) else WRONG
