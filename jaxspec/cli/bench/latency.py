"""`jaxspec bench latency`: time the phases of a round of a named architecture."""

from __future__ import annotations

import argparse
import sys

from jaxspec.cli.shared import options, parse, values


def add_command(commands: options.Commands) -> None:
    """Add the command to the parser of `bench`."""
    parser = options.add_parser(
        commands,
        "bench latency",
        run,
        "time the phases of a round of a published architecture with random weights",
        "jaxspec bench latency mini --widths 1,8,32 --contexts 512",
    )
    add, default = parser.add_argument, options.DEFAULT
    add(
        "arch",
        nargs="?",
        metavar="model",
        default="mini",
        help=f"architecture, such as qwen3-8b {default}",
    )
    add(
        "--method",
        help="drafter, or drafter-builder with settings, as in eagle3-dynamic/d7/w10 or specblock "
        "(default: a block drafter and its best-first tree)",
    )
    add(
        "--widths",
        type=parse.parse_integers,
        help="numbers of tree rows to verify, as in 1,64,256 (default: depends on the device)",
    )
    add(
        "--contexts",
        type=parse.parse_integers,
        help="numbers of cached tokens, as in 512,8k (default: depends on the device)",
    )
    add("--batch", type=int, default=1, help=f"number of sequences {default}")
    options.add_dtype(parser)
    add("--quantize", choices=("int8", "fp8"), help="store each weight of the target in one byte")
    add("--layers", type=int, help="use only this many target layers, for a quick try")
    options.add_repeats(parser, 5, "samples per figure, taken in turn")
    add(
        "--minutes",
        type=float,
        help="stop starting new measurements after this time and list the skipped ones "
        "(default: 8)",
    )
    add(
        "--force-acceptance",
        metavar="HISTOGRAM",
        help="replay acceptance: the mean number of tokens per round, bonus included, or a JSON "
        "list (or a file of it) with the share of rounds that commit 0, 1, 2, ... tokens",
    )
    options.add_json_file(parser)
    options.add_plot(parser)


def run(arguments: argparse.Namespace) -> int:
    """Measure and print a table; save the report after every measurement."""
    from jaxspec.bench.latency import measure_latency as latency
    from jaxspec.bench.latency.forced import read_histogram
    from jaxspec.bench.latency.latency_plot import plot_latency
    from jaxspec.bench.latency.latency_tables import render_latency

    names = ("arch", "method", "widths", "contexts", "batch", "dtype", "quantize", "layers")
    forced = arguments.force_acceptance
    settings = latency.LatencyOptions(
        **{name: value for name in names if (value := getattr(arguments, name)) is not None},
        repeats=arguments.repeats,
        minutes=arguments.minutes,
        histogram=None if forced is None else read_histogram(forced),
    )
    latency.resolve_options(settings)
    values.check_folders(arguments, "json", "plot")
    report = latency.measure_latency(
        settings,
        progress=lambda line: print(line, file=sys.stderr, flush=True),
        save=lambda report: values.save_json(arguments.json, report),
    )
    print(render_latency(report))
    if arguments.plot:
        plot_latency(report, arguments.plot)
    return 0
