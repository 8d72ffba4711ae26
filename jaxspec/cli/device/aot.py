"""`jaxspec aot`: compile the decode loop or a prefill for a GPU you don't have."""

from __future__ import annotations

import argparse
from typing import Any

from jaxspec.cli.shared import options, values
from jaxspec.policies.registry import AUTOMATIC

FAILED = 1


def add_command(commands: options.Commands) -> None:
    """Add the command to the parser."""
    parser = options.add_parser(
        commands,
        "aot",
        run,
        "compile the decode loop for a GPU you don't have, and report what a round consists of",
        "jaxspec aot qwen3-8b --gpu h100 --layers 2 --budget 64",
    )
    add, default = parser.add_argument, options.DEFAULT
    add(
        "arch",
        nargs="?",
        metavar="model",
        default="qwen3-8b",
        help=f"architecture; its weights take no memory {default}",
    )
    add(
        "--gpu",
        default="h100",
        help="h100, h200, b200, a100, l4 or t4, or a list; or cpu: virtual devices, which show "
        f"what --tp makes of a program, and need no plugin {default}",
    )
    add(
        "--drafter",
        help="ar alone; or jetspec, dspark, eagle3, griffin or specblock, beside ar (default: jetspec)",
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
    add(
        "--visit",
        action="store_true",
        help="compile a visit of a serving engine instead: rounds of --batch slots that draft and "
        "rounds that do not, in all their sizes",
    )
    add("--rows", type=int, help="most rows that a --visit verifies at once (default: serve's)")
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
    add("--cache-dtype", choices=("fp8",), help="keys and values in one byte (default: as --dtype)")
    add("--quantize", help="int8, fp8 or int4 weights of the target (default: as --dtype)")
    add("--layers", type=int, help="compile fewer target layers (default: all)")
    add("--tp", type=int, default=1, help=f"GPUs that share the target {default}")
    options.add_experts(parser)
    add("--large", type=int, default=8, help=f"list results of at least this many MiB {default}")
    options.add_json_file(parser, "write the whole report to this file")


def run(arguments: argparse.Namespace) -> int:
    """Compile and print the report; the exit status is 1 if a program does not compile."""
    from jaxspec.bench.aot.report import check_call, compile_decode_loop
    from jaxspec.bench.aot.table import render_compiled, render_partitioned
    from jaxspec.bench.aot.virtual import VIRTUAL, compile_virtual

    values.check_folders(arguments, "json")
    gpus = arguments.gpu.split(",")
    if VIRTUAL in gpus and len(gpus) > 1:
        raise ValueError(f"--gpu is {arguments.gpu}: give {VIRTUAL} alone, or GPUs")
    calls = [
        (gpu, {"dtype": arguments.dtype or _find_dtype(gpu)} | call)
        for gpu in gpus
        for call in _list_calls(arguments)
    ]
    for _, call in calls:  # all of them before the first compiles
        check_call(**call)
    if gpus == [VIRTUAL]:
        reports, render = [compile_virtual(**call) for _, call in calls], render_partitioned
    else:
        large = arguments.large * 2**20
        reports = [compile_decode_loop(gpu, large=large, **call) for gpu, call in calls]
        render = render_compiled
    values.save_json(arguments.json, reports)
    print(render(reports))
    return 0 if all(one["compiles"] for one in reports) else FAILED


def _find_dtype(gpu: str) -> str:
    from jaxspec.bench.aot.virtual import VIRTUAL
    from pallas_kernels.aot.gpus import find_gpu

    return "bfloat16" if gpu == VIRTUAL else find_gpu(gpu).dtype


def _list_calls(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """List the programs that the options name, as options of `compile_decode_loop` without a dtype."""
    from jaxspec.bench.architectures import DRAFTER

    names = (
        "arch",
        "batch",
        "layers",
        "quantize",
        "cache_dtype",
        "temperature",
        "top_k",
        "top_p",
        "min_p",
    )
    names = (*names, "acceptance", "budget", "policy", "experts")
    shared = {name: getattr(arguments, name) for name in names}
    shared |= {"capacity": arguments.context, "devices": arguments.tp}
    drafter = arguments.drafter or DRAFTER
    shared["builder"] = arguments.builder or ("best_first" if drafter == DRAFTER else None)
    part = "prefill" if arguments.prefill else "rounds"
    wanted = [{"part": part, "drafter": m} for m in dict.fromkeys(("ar", drafter))]
    if arguments.draft:
        if drafter == "ar" or arguments.prefill or arguments.default:
            raise ValueError(
                "--draft needs a --drafter that drafts, without --prefill or --default"
            )
        wanted = [
            {"part": "draft", "drafter": drafter, "builder": builder}
            for builder in dict.fromkeys(("chain", shared["builder"]))
        ]
    if arguments.rows is not None and not arguments.visit:
        raise ValueError("--rows is for --visit")
    if arguments.visit:
        if arguments.draft or arguments.prefill or arguments.default or arguments.policy:
            raise ValueError("--visit takes no --draft, --prefill, --default or --policy")
        wanted = [{"part": "visit", "drafter": drafter, "rows": arguments.rows}]
    if arguments.default:
        shared["policy"] = AUTOMATIC
        wanted = [{"part": part, "drafter": drafter} for part in ("prefill", "rounds")]
    return [shared | one for one in wanted]
