"""`python -m benchmarks adapt`: what drafters gain by learning while they serve, and what that costs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from jaxspec.cli.adapt import load_inputs
from jaxspec.cli.shared import learning, options, parse, values
from jaxspec.core.runtime import distribution

EXAMPLE = "--prompts heldout.jsonl.gz --stream blocks --queries 50 --seeds 2"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the study."""
    add, default = parser.add_argument, options.DEFAULT
    options.add_model(parser)
    add("--prompts", type=parse.parse_file, help=options.PROMPT_FILE)
    add(
        "--stream",
        default="blocks",
        help=f"blocks, shuffled, passes, returning or identifiers {default}",
    )
    add("--arms", type=parse.parse_names, help="comma-separated deciders (default: all)")
    add("--queries", type=int, default=200, help=f"prompts per domain {default}")
    add("--passes", type=int, default=4, help=f"times that passes repeats its prompts {default}")
    add("--seeds", type=int, default=5, help=f"number of streams {default}")
    add("--limit", type=int, help="prompts per domain that are read (default: all)")
    learning.add_sizes(parser)
    options.add_chat(parser)
    options.add_max_new_tokens(parser, 96)
    add("--temperature", type=float, default=0.0, help=f"0 is greedy decoding {default}")
    options.add_budget(parser, 16)
    add(
        "--clock",
        choices=("measured", "modelled"),
        default="measured",
        help="seconds that deciders count: of this device, or of the modelled one "
        f"(--arch, --device) {default}",
    )
    add("--arch", default="qwen3-8b", help=f"target of the modelled seconds {default}")
    add("--device", default="h100", help=f"device of the modelled seconds {default}")
    add(
        "--null",
        type=int,
        metavar="STREAMS",
        help="instead, simulate streams on which updates change nothing, and count the versions "
        "that each rule takes back by mistake",
    )
    add(
        "--evidence",
        type=int,
        metavar="REPEATS",
        help="instead, decode every prompt so many times with and without evidence, in turns",
    )
    add(
        "--updates",
        type=int,
        metavar="REPEATS",
        help="instead, time gradient steps and tests on the evidence of the prompts so many times",
    )
    add(
        "--layers",
        type=int,
        help="for --updates: of a drafter with random weights and the model's widths, instead of a "
        "trained one",
    )
    options.add_json_file(parser)
    add(
        "--keep",
        type=Path,
        metavar="RUNS.jsonl",
        help="write each stream here as it ends; the same command goes on with what is there",
    )
    options.add_plot(parser)
    add("--report", type=Path, metavar="OUT.md", help="write the table as Markdown")


def run(arguments: argparse.Namespace) -> tuple[Any, str]:
    """Measure, and render a table."""
    if arguments.null is not None:
        return _run_null(arguments)
    if arguments.prompts is None:
        raise ValueError("adapt needs prompts of two domains or more: give --prompts FILE")
    distribution.require("train", "optax")
    if arguments.layers is not None and arguments.updates is None:
        raise ValueError("--layers is for --updates: give both, or neither")
    if arguments.evidence is not None or arguments.updates is not None:
        return _run_costs(arguments)
    from benchmarks.adapt.adapt_plot import plot_windows
    from benchmarks.adapt.measure_adapt import ARMS, measure_adapt
    from benchmarks.adapt.modelled import make_model
    from benchmarks.adapt.summarise_adapt import render_adapt, summarise

    model = make_model(arguments.arch, arguments.device)
    sizes = learning.read_sizes(arguments)
    params, prompts = load_inputs(arguments)
    report = measure_adapt(
        params,
        prompts,
        drafter=values.choose_drafter(arguments),
        stream=arguments.stream,
        arms=arguments.arms or ARMS,
        queries=arguments.queries,
        passes=arguments.passes,
        seeds=arguments.seeds,
        options=sizes,
        decode=_collect_options(arguments),
        prices=model if arguments.clock == "modelled" else None,
        keep=arguments.keep,
        progress=values.show_progress,
    )
    report = summarise(report, model)
    if arguments.report:
        arguments.report.write_text(render_adapt(report, markdown=True) + "\n", encoding="utf-8")
    if arguments.plot:
        plot_windows(report, arguments.plot)
    return report | {"prompts": arguments.prompts.name}, render_adapt(report)


def _collect_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return keyword arguments of `jaxspec.decode`."""
    return {name: getattr(arguments, name) for name in ("max_new_tokens", "temperature", "budget")}


def _run_costs(arguments: argparse.Namespace) -> tuple[Any, str]:
    """Measure what gathering evidence costs, or what updates do."""
    from benchmarks.adapt.evidence_cost import measure_evidence, render_evidence
    from benchmarks.adapt.update_cost import measure_updates, render_updates

    evidence = arguments.evidence is not None
    name = "--evidence" if evidence else "--updates"
    if arguments.plot or arguments.report or arguments.keep:
        raise ValueError(f"{name} makes neither --plot, --report nor --keep: leave them out")
    sizes = learning.read_sizes(arguments)
    params, prompts = load_inputs(arguments)
    if arguments.layers is not None:
        from benchmarks.adapt.random_drafter import add_random_drafter

        params = add_random_drafter(params, arguments.layers)
    measure = measure_evidence if evidence else measure_updates
    report = measure(
        params,
        prompts,
        drafter=values.choose_drafter(arguments),
        repeats=arguments.evidence if evidence else arguments.updates,
        options=sizes,
        decode=_collect_options(arguments),
        progress=values.show_progress,
    )
    text = render_evidence(report) if evidence else render_updates(report)
    return report | {"file": arguments.prompts.name}, text


def _run_null(arguments: argparse.Namespace) -> tuple[Any, str]:
    """Simulate null streams, and count how often the bandits went back."""
    from benchmarks.adapt.simulate import Stream, measure_false_restores
    from jaxspec.adapt.deciders import make_decider
    from jaxspec.bench.report.table import tabulate

    if arguments.null < 1:
        raise ValueError(f"--null is {arguments.null}: give at least 1")
    if arguments.plot or arguments.report or arguments.keep:
        raise ValueError("--null makes neither --plot, --report nor --keep: leave them out")
    room = {"head": arguments.head_room, "full": arguments.full_room}
    rows, results = [], []
    for name in ("bandit-paper", "bandit-paired"):
        restores, windows = measure_false_restores(make_decider(name, room), arguments.null)
        results.append({"decider": name, "restores": restores, "windows_of_16": windows})
        rows.append(
            [name, restores, f"{restores / arguments.null:.3f}", f"{restores / windows:.4f}"]
        )
    queries = Stream(lambda *_: 0.0).queries
    table = tabulate(["decider", "taken back", "per stream", "per 16 queries"], rows).to_text()
    text = f"{arguments.null} streams of {queries} queries without any change\n{table}"
    return {"streams": arguments.null, "results": results}, text
