"""`python -m benchmarks serve-adapt`: what serving loses while a drafter learns from it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from jaxspec.cli.bench import loads
from jaxspec.cli.bench.serve import add_engine, add_lengths, make_requests
from jaxspec.cli.shared import learning, options, parse, values

if TYPE_CHECKING:
    from jaxspec.core.params import Params
    from jaxspec.serve import Engine

EXAMPLE = "--drafter jetspec --slots 16 --clients 16 --arms always-full,always-full@1"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the study."""
    add, default = parser.add_argument, options.DEFAULT
    options.add_model(parser)
    add(
        "--arms",
        type=parse.parse_names,
        default=("always-full", "bandit-paired"),
        help="deciders to compare with an engine that does not learn; with @1, on the second "
        "device, else between visits (default: always-full,bandit-paired)",
    )
    add("--clients", type=int, default=16, help=f"clients of the closed loop {default}")
    add("--budget", type=int, default=4, help=f"most rows of a request in a round {default}")
    add(
        "--rule",
        choices=options.RULES[:-1],
        default="fixed",
        help=f"how rows are shared; `fixed` always drafts, so there is evidence {default}",
    )
    learning.add_sizes(parser)
    add_engine(parser)
    add_lengths(parser)
    loads.add_settings(parser, requests=64)
    options.add_repeats(parser, 3, "number of times that the load goes to each engine")
    options.add_json_file(parser)


def run(arguments: argparse.Namespace) -> tuple[Any, str]:
    """Measure, and render a table."""
    from benchmarks.serving.adapting import compare_adapting, render_adapting
    from jaxspec.bench.report.summary import describe_environment

    params = values.load_params(arguments)
    engines = make_engines(arguments, params)
    records = compare_adapting(
        engines,
        make_requests(arguments, params),
        arguments.clients,
        repeats=arguments.repeats,
        progress=values.show_progress,
    )
    for engine in engines.values():
        engine.close()
    settings = values.collect_settings(arguments, "json")
    report = describe_environment(params) | {"settings": settings, "records": records}
    return report, render_adapting(records)


def make_engines(arguments: argparse.Namespace, params: Params) -> dict[str, Engine]:
    """Make the engine that does not learn, and one for each arm."""
    from benchmarks.serving.adapting import PLAIN
    from jaxspec.adapt.serving import make_adaptive_engine
    from jaxspec.serve import make_engine

    names = ("slots", "capacity", "budget", "rule")
    given = {name: getattr(arguments, name) for name in names}
    if arguments.rule == "fixed":  # all slots are busy, so one size of rounds is enough
        given["edges"] = (arguments.slots * arguments.budget,)
    given |= {"drafter": values.choose_drafter(arguments), "lookup": False}
    engines = {PLAIN: make_engine(params, **given)}
    for arm in arguments.arms:
        decider, _, number = arm.partition("@")
        device = learning.find_device(int(number or 0))
        sizes = learning.read_sizes(arguments)
        engines[arm] = make_adaptive_engine(params, decider, options=sizes, device=device, **given)
    for name, engine in engines.items():
        values.show_progress(f"{name}: compiling")
        engine.warm_up()
    return engines
