"""The subcommands of `jaxspec bench`: latency and peers; others are in `jaxspec.cli.bench_sweep`,
`cli_compare` and `cli_report`.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from jaxspec.cli import bench_report as cli_report
from jaxspec.cli import options as cli_options
from jaxspec.cli.bench_policies import add_compare
from jaxspec.cli.bench_sweep import add_sweep


def add_commands(bench: argparse.ArgumentParser) -> None:
    """Register the subcommands with the parser of `bench`, which also works without one; each sets
    `run`.
    """
    commands = bench.add_subparsers(
        metavar="{latency,peers,sweep,policies,report}",
        help="instead of prompts; see `jaxspec bench latency --help`",
    )
    _add_latency(commands)
    _add_peers(commands)
    add_sweep(commands)
    add_compare(commands)
    cli_report.add_commands(commands)


def _add_latency(commands) -> None:
    latency = commands.add_parser(
        "latency", help="time the pieces of a round of a named architecture with random weights"
    )
    latency.set_defaults(run=_latency)
    add = latency.add_argument
    add(
        "--arch",
        default="mini",
        help="such as qwen3-8b, see jaxspec.bench.architectures (default: %(default)s)",
    )
    add(
        "--widths",
        type=cli_options.parse_sizes,
        help="tree rows verified, as in 1,64,256 (default: what suits the device)",
    )
    add(
        "--contexts",
        type=cli_options.parse_sizes,
        help="cached tokens, as in 512,8k (default: what suits the device)",
    )
    add("--batch", type=int, default=1, help="sequences (default: %(default)s)")
    add(
        "--dtype", choices=("float32", "bfloat16", "float16"), help="default: what suits the device"
    )
    add("--quantize", choices=("int8", "fp8"), help="weight-only quantisation of the target")
    add("--layers", type=int, help="only so many of the target's layers, for a quick try")
    add(
        "--repeats",
        type=int,
        default=5,
        help="samples of each figure, taken in turn (default: %(default)s)",
    )
    add("--minutes", type=float, help="begin nothing later than that (default: 8)")
    add(
        "--force-acceptance",
        metavar="HISTOGRAM",
        help="replay acceptance: a JSON list (or file) of shares of rounds by tokens committed, bonus included, or their mean",
    )
    add("--json", type=Path, metavar="OUT.json", help="write settings and results here")
    add("--plot", type=Path, metavar="OUT.png", help="draw them here (needs matplotlib)")


def _latency(arguments: argparse.Namespace) -> int:
    from jaxspec.bench.latency import measure_latency as latency
    from jaxspec.bench.latency.forced import read_histogram
    from jaxspec.bench.latency.latency_plot import plot_latency
    from jaxspec.bench.latency.latency_tables import render_latency

    given = {
        name: getattr(arguments, name)
        for name in ("arch", "widths", "contexts", "batch", "dtype", "quantize", "layers")
    }
    forced = arguments.force_acceptance
    settings = latency.LatencyOptions(
        **given,
        repeats=arguments.repeats,
        minutes=arguments.minutes,
        histogram=None if forced is None else read_histogram(forced),
    )
    latency.resolve_options(settings)
    cli_options.check_folders(arguments, "json", "plot")

    def save(report) -> None:
        if arguments.json:
            arguments.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")

    report = latency.measure_latency(
        settings, progress=lambda line: print(line, file=sys.stderr, flush=True), save=save
    )
    print(render_latency(report))
    if arguments.plot:
        plot_latency(report, arguments.plot)
    return 0


def _add_peers(commands) -> None:
    peers = commands.add_parser(
        "peers", help="decode beside transformers in PyTorch: same weights, prompts and threads"
    )
    peers.set_defaults(run=_peers)
    add = peers.add_argument
    add("--model", default="mini", help="mini, a hub id or a directory (default: %(default)s)")
    add("--drafter", help="a shipped drafter's name, hub id or directory (default: all that ship)")
    add(
        "--methods",
        help="ours, as for bench (default: a tree of the block drafter, chains of small models, prompt lookup)",
    )
    add(
        "--prompts",
        type=Path,
        help=".jsonl or .jsonl.gz, as for bench (default: the demonstration's)",
    )
    add("--limit", type=int, help="prompts per domain (default: all)")
    add("--max-new-tokens", type=int, default=128, help="(default: %(default)s)")
    add(
        "--repeats",
        type=int,
        default=5,
        help="decodes of each prompt by each peer (default: %(default)s)",
    )
    add("--json", type=Path, metavar="OUT.json", help="write settings and results here")


def _peers(arguments: argparse.Namespace) -> int:
    import jaxspec
    from jaxspec.bench import demo
    from jaxspec.bench.measure.methods import parse_methods
    from jaxspec.bench.measure.prompt_files import read_prompts
    from jaxspec.bench.peers import race_peers as peers
    from jaxspec.bench.peers.peer_tables import render_peers
    from jaxspec.io.hub import resolve_model
    from jaxspec.io.tokenizer import load_tokenizer
    from jaxspec.zoo.checkpoint import drafter_directories

    if arguments.repeats < 1:
        raise ValueError(f"--repeats is {arguments.repeats}: give at least 1")
    cli_options.check_folders(arguments, "json")
    params = jaxspec.load(arguments.model, drafter=arguments.drafter, dtype="float32")
    spec = params.spec
    methods = parse_methods(arguments.methods or peers.default_methods(spec), budget=32, spec=spec)
    tokenizer = load_tokenizer(spec.tokenizer) if spec.tokenizer else None
    report = peers.compare_peers(
        params,
        read_prompts(arguments.prompts or demo.DEMO_PROMPTS, tokenizer, limit=arguments.limit),
        methods,
        resolve_model(arguments.model),
        peers.find_assistants(
            spec, drafter_directories(arguments.model, drafter=arguments.drafter)
        ),
        max_new_tokens=arguments.max_new_tokens,
        repeats=arguments.repeats,
        progress=cli_options.progress,
    )
    report["settings"] = {
        "model": Path(arguments.model).name,
        "methods": {method.name: method.options for method in methods},
    }
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(render_peers(report["results"], report["overhead"]))
    if report["note"]:
        print(report["note"])
    return 0
