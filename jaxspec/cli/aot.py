"""`jaxspec aot`: compile the decode loop or a prefill for a GPU you don't have."""

from __future__ import annotations

import argparse

from jaxspec.cli import options, values
from jaxspec.policies.registry import AUTOMATIC

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
    add("--gpu", default="h100", help=f"h100, h200, b200, a100, l4 or t4, or a list {default}")
    add(
        "--method",
        default="jetspec",
        help=f"ar; jetspec, dspark, eagle3, specblock with ar {default}",
    )
    add(
        "--default",
        action="store_true",
        help="compile all that a call with default settings needs, prefill and the rounds, instead",
    )
    add("--builder", help="see generate (default: the drafter's, for jetspec best_first)")
    add("--budget", type=int, default=64, help=f"rows verified per round {default}")
    add(
        "--policy",
        help="rule of the controller, such as best, or blockpilot (default: verify all rows)",
    )
    add("--context", type=int, default=2048, help=f"rows of the KV caches {default}")
    add(
        "--prefill",
        action="store_true",
        help="compile the prefill of prompts that fill the caches instead",
    )
    add(
        "--draft",
        action="store_true",
        help="compile the drafting of a round alone instead, after that of a chain",
    )
    add("--batch", type=int, default=1, help=f"number of sequences {default}")
    add("--temperature", type=float, default=0.0, help=f"0 decodes greedily {default}")
    add("--top-k", type=int, help="sample among the most likely tokens (default: all)")
    add("--top-p", type=float, help="sample within this probability mass (default: all)")
    add("--min-p", type=float, help="least probability relative to the best token (default: 0)")
    add(
        "--acceptance",
        default="match",
        choices=("match", "sequential", "rejection"),
        help=f"see generate {default}",
    )
    add(
        "--dtype",
        choices=options.DTYPES,
        help="dtype of weights (default: bfloat16, or float16 where the GPU lacks it)",
    )
    add("--quantize", help="int8 or fp8 weights of the target (default: as --dtype)")
    add("--layers", type=int, help="compile fewer target layers (default: all)")
    add("--tp", type=int, default=1, help=f"GPUs that share the target {default}")
    options.add_experts(parser)
    add("--large", type=int, default=8, help=f"list results of at least this many MiB {default}")
    options.add_json_file(parser, "write the whole report to this file")


def run(arguments: argparse.Namespace) -> int:
    """Compile and print the report; the exit status is 1 if a program does not compile."""
    from jaxspec.bench.aot import check_call, compile_decode_loop
    from jaxspec.bench.aot_table import render_compiled
    from jaxspec.bench.architectures import DRAFTER
    from pallas_kernels.aot_gpus import find_gpu

    values.check_folders(arguments, "json")
    model, sampling = (
        ("arch", "batch", "layers", "quantize"),
        ("temperature", "top_k", "top_p", "min_p"),
    )
    names = (*model, *sampling, "acceptance", "budget", "policy")
    shared = {name: getattr(arguments, name) for name in names}
    shared |= {"capacity": arguments.context, "devices": arguments.tp}
    shared["experts"] = arguments.experts
    shared["builder"] = arguments.builder or ("best_first" if arguments.method == DRAFTER else None)
    part = "prefill" if arguments.prefill else "rounds"
    wanted = [{"part": part, "method": m} for m in dict.fromkeys(("ar", arguments.method))]
    if arguments.draft:
        if arguments.method == "ar" or arguments.prefill or arguments.default:
            raise ValueError("--draft needs a --method that drafts, without --prefill or --default")
        wanted = [
            {"part": "draft", "method": arguments.method, "builder": builder}
            for builder in dict.fromkeys(("chain", shared["builder"]))
        ]
    if arguments.default:
        shared["policy"] = AUTOMATIC
        wanted = [{"part": part, "method": arguments.method} for part in ("prefill", "rounds")]
    calls = [
        (gpu, {"dtype": arguments.dtype or find_gpu(gpu).dtype, **shared, **one})
        for gpu in arguments.gpu.split(",")
        for one in wanted
    ]
    for _, call in calls:  # all of them before the first compiles
        check_call(**call)
    large = arguments.large * 2**20
    reports = [compile_decode_loop(gpu, large=large, **call) for gpu, call in calls]
    values.save_json(arguments.json, reports)
    print(render_compiled(reports))
    return 0 if all(one["compiles"] for one in reports) else FAILED
