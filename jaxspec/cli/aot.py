"""`jaxspec aot`: compile the decode loop for a GPU you don't have."""

from __future__ import annotations

import argparse

from jaxspec.cli import options, values

FAILED = 1


def add_command(commands: options.Commands) -> None:
    """Add the command to the parser."""
    parser = options.add_parser(
        commands,
        "aot",
        run,
        "compile the decode loop for a GPU you don't have, and report what a round consists of",
        "jaxspec aot --arch qwen3-8b --gpu h100 --layers 2 --budget 64",
    )
    add, default = parser.add_argument, options.DEFAULT
    add("--arch", default="qwen3-8b", help=f"architecture; its weights take no memory {default}")
    add("--gpu", default="h100", help=f"h100, h200, b200, a100, l4 or t4 {default}")
    add("--method", default="jetspec", help=f"ar; jetspec, eagle3, specblock with ar {default}")
    add("--builder", help="see generate (default: the drafter's, for jetspec best_first)")
    add("--budget", type=int, default=64, help=f"rows verified per round {default}")
    add("--policy", help="rule of the controller, such as best (default: verify all rows)")
    add("--context", type=int, default=2048, help=f"rows of the KV caches {default}")
    add("--batch", type=int, default=1, help=f"number of sequences {default}")
    add("--temperature", type=float, default=0.0, help=f"0 decodes greedily {default}")
    add("--dtype", default="bfloat16", choices=options.DTYPES, help=f"dtype of weights {default}")
    add("--quantize", help="int8 or fp8 weights of the target (default: as --dtype)")
    add("--layers", type=int, help="compile fewer target layers (default: all)")
    add("--large", type=int, default=8, help=f"list results of at least this many MiB {default}")
    options.add_json_file(parser, "write the whole report to this file")


def run(arguments: argparse.Namespace) -> int:
    """Compile and print the report; the exit status is 1 if a program does not compile."""
    from jaxspec.bench.aot import DRAFTER, compile_decode_loop, render_compiled

    values.check_folders(arguments, "json")
    names = ("arch", "batch", "temperature", "dtype", "layers", "budget", "policy", "quantize")
    shared = {name: getattr(arguments, name) for name in names}
    shared["builder"] = arguments.builder or ("best_first" if arguments.method == DRAFTER else None)
    reports = [
        compile_decode_loop(
            arguments.gpu,
            large=arguments.large * 2**20,
            method=method,
            capacity=arguments.context,
            **shared,
        )
        for method in dict.fromkeys(("ar", arguments.method))
    ]
    values.save_json(arguments.json, reports)
    print(render_compiled(reports))
    return 0 if all(one["compiles"] for one in reports) else FAILED
