"""`jaxspec bench`: measure decoding methods on a file of prompts.

Other measurements, such as `jaxspec bench latency`, are in the modules beside this one.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from jaxspec.cli.bench import endpoint, latency, outputs, peers, report, serve
from jaxspec.cli.shared import asking, options, parse, values
from jaxspec.core.runtime.near_miss import find_near_miss

if TYPE_CHECKING:
    from jaxspec.bench.measure.methods import Method
    from jaxspec.core.params import Spec

COMMANDS = (latency, peers, endpoint, serve, report)
METHODS = (
    "comma-separated methods: ar for autoregressive decoding, default for what decode chooses by "
    "itself, all for every drafter with the builders that suit it, or "
    "<drafter>-<builder>[+score][@budget][/setting...][/policy]. "
    "Builders: chain, best_first, expand, beam, static, dynamic, lattice, rank_guided. "
    "Scores: entropy, hybrid0.1. Settings: d6 (depth), b8 (block size), t1 (score temperature), or "
    "one of the builder's, such as w4 (width) or fanout=top2gap. Policies: those of --policy, and "
    "policy=FOLDER. "
    "Example: eagle3-dynamic@12/d6/w4"
)


def add_command(commands: options.Commands) -> None:
    """Add the command and those that begin with its name to the parser."""
    parser = options.add_parser(
        commands,
        "bench",
        run,
        "measure methods on a file of prompts",
        "jaxspec bench mini --methods ar,jetspec-expand@16 --prompts prompts.jsonl --json out.json",
    )
    add, default = parser.add_argument, options.DEFAULT
    options.add_model(parser)
    options.add_devices(parser)
    add("--methods", default="ar,default", help=f"{METHODS} {default}")
    add(
        "--prompts",
        type=parse.parse_prompts,
        help="file of prompts, .jsonl, .json (gzipped or not) or .parquet, or a data set on the "
        "hub, hub:OWNER/NAME[/CONFIG][:SPLIT] (required)",
    )
    add("--limit", type=int, default=30, help=f"prompts per domain {default}")
    options.add_repeats(parser, 3, "number of times that each method decodes each prompt")
    options.add_chat(parser)
    options.add_template(parser)
    add(
        "--coupled",
        choices=("on", "off", "both"),
        default="on",
        help=f"draft under the target's sampling noise; both compares the two {default}",
    )
    add(
        "--against",
        metavar="METHOD",
        help="compare the tokens a round of all methods with those of this one, on the same "
        "prompts; without @ROWS, each with the one of as many rows",
    )
    options.add_scramble(parser, "all loaded drafters")
    add("--no-profile", action="store_true", help="do not split rounds into phases")
    outputs.add_outputs(parser)
    options.add_decode(parser, max_new_tokens=128, several=True, budget=32)
    for command in COMMANDS:
        command.add_command(commands)


def run(arguments: argparse.Namespace) -> int:
    """Measure the methods, write the files that the options name, and print a table."""
    from jaxspec.bench.benchmark import benchmark
    from jaxspec.bench.measure.scramble import scramble_drafters
    from jaxspec.bench.report.pairs import add_ratios
    from jaxspec.bench.report.speed_table import tabulate_speeds
    from jaxspec.io.text.prompt_files import uses_template
    from jaxspec.zoo.drafters import training_costs

    _check(arguments)  # finds mistakes before a large model is loaded
    params = values.load_params(arguments)
    if arguments.scramble is not None:
        params = scramble_drafters(params, arguments.scramble)
    methods = _parse_methods(arguments, params.spec)
    partners = _find_partners(arguments, methods)
    tokenizer = params.tokenizer
    prompts = asking.read_prompts(arguments, tokenizer)
    given, kept = values.collect_decode_options(arguments), outputs.KeptRuns()
    if arguments.template:
        given["template"] = arguments.template
    measured = benchmark(
        params,
        prompts,
        methods,
        repeats=arguments.repeats,
        options={name: value for name, value in given.items() if name != "temperature"},
        temperatures=arguments.temperature,
        costs=training_costs(arguments.model, drafter=values.read_drafters(arguments)),
        with_profile=not arguments.no_profile,
        progress=values.show_progress,
        keep=kept,
    )
    measured["results"] = add_ratios(measured["results"], kept.found, partners)
    measured["settings"] = values.collect_settings(arguments, *outputs.OUTPUTS) | {
        "chat": uses_template(tokenizer, asking.read_chat(arguments)),
        "methods": {method.name: method.options for method in methods},
    }
    outputs.write_outputs(arguments, measured, kept, tokenizer)
    if arguments.scramble is not None:
        print(f"the drafters' weights are scrambled (seed {arguments.scramble})")
    print(tabulate_speeds(measured["results"], measured["drafters"]).to_text())
    seconds = measured["compile_seconds"].items()
    print("compilation, seconds: " + ", ".join(f"{name} {value:.1f}" for name, value in seconds))
    return 0


def _check(arguments: argparse.Namespace) -> None:
    """Refuse options that cannot work, without loading a model."""
    if arguments.prompts is None:
        names = [command.__name__.rpartition(".")[2] for command in COMMANDS]
        near = find_near_miss(arguments.model, names)
        hint = "" if near is None else f", or did you mean `jaxspec bench {near}`?"
        raise ValueError(f"bench needs prompts: give --prompts FILE{hint}")
    methods = _parse_methods(arguments)
    if "all" not in arguments.methods.split(","):  # which methods these are, the model says
        _find_partners(arguments, methods)
    if arguments.coupled == "both" and not any(arguments.temperature):
        raise ValueError("--coupled both needs a temperature above 0: give --temperature 1")
    outputs.check_outputs(arguments)


def _parse_methods(arguments: argparse.Namespace, spec: Spec | None = None) -> list[Method]:
    from jaxspec.bench.measure.methods import parse_methods

    return parse_methods(
        arguments.methods,
        budget=arguments.budget,
        coupled=arguments.coupled,
        spec=spec,
    )


def _find_partners(arguments: argparse.Namespace, methods: Sequence[Method]) -> dict[str, str]:
    """Find the method that each one is compared with; none without `--against`."""
    from jaxspec.bench.report.pairs import find_partners

    if arguments.against is None:
        return {}
    return find_partners([method.name for method in methods], arguments.against)
