"""The subcommands `inspect`, `convert`, `doctor` and `aot` of the `jaxspec` command."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from jaxspec.cli import options as cli_options

WARNED = 1


def add_commands(commands) -> None:
    """Register the subcommands with argparse's `commands`; each sets `run`, from arguments to exit
    status.
    """
    inspect = commands.add_parser(
        "inspect", help="say what a checkpoint is, for which target, and whether it can be loaded"
    )
    inspect.set_defaults(run=_inspect)
    inspect.add_argument("path", help="directory, hub id, or a model that ships")
    inspect.add_argument("--json", action="store_true", help="print JSON instead")

    convert = commands.add_parser("convert", help="write a drafter in another format")
    convert.set_defaults(run=_convert)
    convert.add_argument(
        "source", help="directory or hub id; with --target, also a drafter that ships with it"
    )
    convert.add_argument("destination", type=Path, help="directory to make")
    convert.add_argument(
        "--to",
        required=True,
        choices=("dflash", "jetspec", "speculators"),
        help="dflash, jetspec: one native layout, for vLLM and SGLang; speculators: for vLLM",
    )
    convert.add_argument(
        "--target", help="the model it drafts for; speculators files carry its embeddings"
    )

    doctor = commands.add_parser(
        "doctor", help="check a drafter against its target with a short decode"
    )
    doctor.set_defaults(run=_doctor)
    doctor.add_argument("model", help="mini, a hub id or a directory")
    doctor.add_argument("drafter", help="a shipped drafter's name, hub id or directory")
    doctor.add_argument(
        "--max-new-tokens", type=int, default=32, help="for each prompt (default: %(default)s)"
    )
    doctor.add_argument(
        "--prompts",
        type=Path,
        help="file with a prompt a line, token ids for a model without a tokenizer",
    )
    doctor.add_argument(
        "--dtype", choices=("float32", "bfloat16", "float16"), help="default: what suits the device"
    )
    doctor.add_argument("--json", action="store_true", help="print JSON instead")

    aot = commands.add_parser(
        "aot", help="compile the decode loop for a GPU that need not be there, and report a round"
    )
    aot.set_defaults(run=_aot)
    aot.add_argument(
        "--arch",
        default="qwen3-8b",
        help="a named architecture, with weights that take no memory (%(default)s)",
    )
    aot.add_argument(
        "--gpu", default="h100", help="h100, h200, b200, a100, l4 or t4 (default: %(default)s)"
    )
    aot.add_argument(
        "--method",
        default="jetspec",
        help="ar or jetspec, which comes with ar (default: %(default)s)",
    )
    aot.add_argument("--builder", default="best_first", help="(default: %(default)s)")
    aot.add_argument(
        "--budget", type=int, default=64, help="rows verified in a round (default: %(default)s)"
    )
    aot.add_argument(
        "--policy", help="a rule of the controller, such as best (default: all rows of every round)"
    )
    aot.add_argument(
        "--context", type=int, default=2048, help="rows of the caches (default: %(default)s)"
    )
    aot.add_argument("--batch", type=int, default=1, help="sequences (default: %(default)s)")
    aot.add_argument(
        "--temperature", type=float, default=0.0, help="0 is greedy (default: %(default)s)"
    )
    aot.add_argument(
        "--dtype", default="bfloat16", help="bfloat16, float16 or float32 (default: %(default)s)"
    )
    aot.add_argument(
        "--layers", type=int, help="the target's, where fewer than the architecture has"
    )
    aot.add_argument(
        "--large",
        type=int,
        default=8,
        help="list results of this many MiB and more (default: %(default)s)",
    )
    aot.add_argument("--json", type=Path, metavar="OUT.json", help="write the whole report here")


def _inspect(arguments: argparse.Namespace) -> int:
    from jaxspec.zoo.inspect import describe, render

    about = describe(arguments.path)
    print(json.dumps(about, indent=1) if arguments.json else render(about))
    return 0


def _convert(arguments: argparse.Namespace) -> int:
    from jaxspec.zoo.convert import convert

    print(
        f"wrote {convert(arguments.source, arguments.destination, arguments.to, arguments.target)}"
    )
    return 0


def _doctor(arguments: argparse.Namespace) -> int:
    from jaxspec.zoo.doctor import diagnose, render

    prompts = None if arguments.prompts is None else _prompts(arguments.prompts, arguments.model)
    options = {"max_new_tokens": arguments.max_new_tokens, "dtype": arguments.dtype}
    result = diagnose(arguments.model, arguments.drafter, prompts=prompts, **options)
    print(json.dumps(result, indent=1) if arguments.json else render(result))
    return WARNED if result["warnings"] else 0


def _aot(arguments: argparse.Namespace) -> int:
    from jaxspec.bench.aot import compile_decode_loop, render_compiled

    cli_options.check_folders(arguments, "json")
    shared = {
        name: getattr(arguments, name)
        for name in ("arch", "batch", "temperature", "dtype", "layers")
    }
    tree = {"capacity": arguments.context} | {
        name: getattr(arguments, name) for name in ("builder", "budget", "policy")
    }
    reports = [
        compile_decode_loop(
            arguments.gpu, large=arguments.large * 2**20, method=method, **shared, **tree
        )
        for method in dict.fromkeys(("ar", arguments.method))
    ]
    if arguments.json:
        arguments.json.write_text(json.dumps(reports, indent=1) + "\n", encoding="utf-8")
    print(render_compiled(reports))
    return 0 if all(one["compiles"] for one in reports) else WARNED


def _prompts(path: Path, model: str) -> list:
    """The file's lines, as token ids where the model has no tokenizer."""
    from jaxspec.io.hub import resolve_model
    from jaxspec.io.tokenizer import load_tokenizer

    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    if load_tokenizer(str(resolve_model(model))) is not None:
        return lines
    try:
        return [[int(token) for token in line.split()] for line in lines]
    except ValueError:
        raise ValueError(
            f"{path}: {model} has no tokenizer, so its prompts are token ids separated by spaces"
        ) from None
