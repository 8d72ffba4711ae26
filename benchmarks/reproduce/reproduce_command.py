"""`jaxspec reproduce`: try the papers' claims on a model at hand."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.reproduce.claim import Claim
from benchmarks.reproduce.claims.registry import CLAIMS, choose_claims
from benchmarks.reproduce.measurement import SCALES, Setting
from benchmarks.reproduce.measurements import MEASUREMENTS
from benchmarks.reproduce.runner import (
    RESULTS,
    ROOT,
    count_minutes,
    find_obstacle,
    is_measured,
    order_claims,
    reproduce,
)
from jaxspec.cli.shared import options, parse
from jaxspec.cli.shared.parser import Parser

EXAMPLE = "jaxspec reproduce jetspec/table-10 --model mini"
PAGE = ROOT / "docs/claims.md"
# Ours, where nothing else is given; a small model's answers to them are short.
PROMPTS = ROOT / "jaxspec/bench/demo_prompts.jsonl"


def make_parser() -> Parser:
    """Make the parser of the command."""
    parser = Parser(
        prog="jaxspec reproduce",
        description="Try the claims of the papers on a model: measure, decide, write a page.",
        epilog=f"Example: {EXAMPLE}",
    )
    add, default = parser.add_argument, options.DEFAULT
    add("claims", nargs="*", metavar="ID", help="claims, such as jetspec/table-8, or papers")
    add("--list", action="store_true", help="list the claims, what they need and cost")
    add("--all", action="store_true", help="run all claims, the cheapest first")
    add("--page", action="store_true", help="write docs/claims.md from the results that are kept")
    add("--model", default="mini", help=f"name, hub id or directory {default}")
    add(
        "--scale",
        choices=SCALES,
        default=SCALES[0],
        help=f"small for CPUs, full for a GPU {default}",
    )
    add(
        "--prompts",
        type=parse.parse_prompts,
        help=f"held out: {options.PROMPT_FILE} (default: the demo's)",
    )
    add("--corpus", type=parse.parse_file, help="texts to train on (default: nothing is trained)")
    add(
        "--out", type=Path, default=Path("runs/reproduce"), help=f"folder of measurements {default}"
    )
    add("--results", type=Path, default=RESULTS, help="folder of results (default: the clone's)")
    add("--again", action="store_true", help="decide again, from the measurements that are kept")
    return parser


def run(rest: list[str]) -> int:
    """Parse the command's words, and run what they ask for.

    Raises:
      ValueError: nothing is asked for, or a claim is unknown.
    """
    arguments = make_parser().parse_args(rest)
    if not (arguments.claims or arguments.all or arguments.list or arguments.page):
        raise ValueError("reproduce needs claims: give ids, --all, --list or --page")
    claims = choose_claims(arguments.claims) if arguments.claims else list(CLAIMS.values())
    if arguments.list:
        print(list_claims(claims, make_setting(arguments)))
        return 0
    if arguments.claims or arguments.all:
        _run_claims(arguments, claims)
    if arguments.page:
        from benchmarks.reproduce.page import write_page

        print(f"wrote {write_page(PAGE, arguments.results)}")
    return 0


def make_setting(arguments: argparse.Namespace) -> Setting:
    """Make the setting that the options describe."""
    from jaxspec.io.hub import shipped
    from jaxspec.zoo.places import find_drafters, resolve_model

    model = arguments.model
    folder = find_drafters(model, resolve_model(model, weights=False))
    return Setting(
        model=model,
        drafters=shipped(folder),
        scale=arguments.scale,
        prompts=(arguments.prompts or PROMPTS).absolute(),
        corpus=arguments.corpus and arguments.corpus.absolute(),
        out=arguments.out.absolute() / Path(model).name / arguments.scale,
    )


def list_claims(claims: list[Claim], setting: Setting) -> str:
    """List claims with what each needs and costs, and what all of them cost together."""
    lines, runnable = [], []
    for claim in claims:
        reason = find_obstacle(claim, setting)
        minutes = f"{count_minutes(claim, setting):.0f} min"
        needs = f"{minutes}: {', '.join(claim.needs)}" if reason is None else f"not run: {reason}"
        lines.append(f"{claim.id}\n    {claim.says} Paper: {claim.paper}. [{needs}]")
        runnable += [] if reason else [claim]
    measured = [name for name in MEASUREMENTS if is_measured(name, setting)]
    names = {name for claim in runnable for name in claim.needs} - set(measured)
    hours = sum(MEASUREMENTS[name].minutes.get(setting.model, 0.0) for name in names) / 60
    lines.append(
        f"{len(claims)} claims, {len(runnable)} of them for {setting.model} at this scale: "
        f"{len(names)} measurements, {hours:.1f} hours on an idle core; {len(measured)} are kept"
    )
    return "\n".join(lines)


def _run_claims(arguments: argparse.Namespace, claims: list[Claim]) -> None:
    """Run claims with a progress bar, and print a line for each and a summary."""
    from tqdm import tqdm

    setting, counts = make_setting(arguments), Counter()
    with tqdm(total=len(claims), unit="claim", file=sys.stderr) as bar:

        def tell(claim: Claim, result: dict[str, Any]) -> None:
            counts[result["verdict"]] += 1
            bar.update()
            bar.write(f"{claim.id}: {result['verdict']}. {result['ours']}", file=sys.stdout)

        reproduce(
            order_claims(claims, setting),
            setting,
            arguments.results,
            again=arguments.again,
            tell=tell,
            begin=lambda name: bar.set_description(name),
        )
    print(", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
