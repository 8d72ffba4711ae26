"""`jaxspec plan`: say how many GPUs should share a model, and what rounds would take."""

from __future__ import annotations

import argparse
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING

from jaxspec.cli.shared import options, parse, values

if TYPE_CHECKING:
    from jaxspec.core.config import TargetConfig

_ITEMSIZE = {None: 2.0, "int8": 1.0, "fp8": 1.0}


def add_command(commands: options.Commands) -> None:
    """Add the command to the parser."""
    parser = options.add_parser(
        commands,
        "plan",
        run,
        "say how many GPUs should share a model: memory and modelled times of a round",
        "jaxspec plan qwen3-32b --gpus 4xh100 --context 32k --batch 8",
    )
    add, default = parser.add_argument, options.DEFAULT
    add("model", help="an architecture that `jaxspec aot` knows, or a directory with config.json")
    add("--gpus", default="4xh100", help=f"number and kind: h100, h200 or a100 {default}")
    add(
        "--context",
        type=parse.parse_integers,
        default=(4096,),
        help="tokens of a sequence, as in 32k (default: 4k)",
    )
    add("--batch", type=int, default=1, help=f"sequences at a time, on all GPUs {default}")
    add("--rows", type=int, default=64, help=f"rows verified per sequence and round {default}")
    add("--quantize", choices=("int8", "fp8"), help="weights of one byte (default: two)")
    add("--drafter-gb", type=float, default=0.0, help=f"size of the drafter's weights {default}")
    options.add_json_file(parser, "write the plans to this file")


def run(arguments: argparse.Namespace) -> int:
    """Print a table of meshes and which to take."""
    from jaxspec.bench.plan_mesh import Load, plan_meshes, render_plan

    values.check_folders(arguments, "json")
    found = re.fullmatch(r"(\d+)x(\w[\w-]*)", arguments.gpus.lower())
    if found is None or int(found[1]) < 1:
        raise ValueError(f"--gpus is {arguments.gpus!r}: write it as in 4xh100")
    if len(arguments.context) != 1 or min(arguments.batch, arguments.rows, *arguments.context) < 1:
        raise ValueError("--context, --batch and --rows take one number each: give at least 1")
    if not 0 <= arguments.drafter_gb < math.inf:
        raise ValueError(f"--drafter-gb is {arguments.drafter_gb}: give a size of at least 0")
    load = Load(
        arguments.batch,
        arguments.rows,
        arguments.context[0],
        _ITEMSIZE[arguments.quantize],
        arguments.drafter_gb * 1e9,
    )
    plans = plan_meshes(_find_config(arguments.model), found[2], int(found[1]), load)
    values.save_json(arguments.json, plans)
    print(render_plan(plans))
    return 0


def _find_config(model: str) -> TargetConfig:
    """Find a target's sizes by the name of its architecture or in its config.json."""
    from jaxspec.bench.architectures import ARCHITECTURES
    from jaxspec.io.weights.config_entries import read_entries
    from jaxspec.targets.families.hf_config import target_config

    if model.lower() in ARCHITECTURES:
        return ARCHITECTURES[model.lower()]
    path = Path(model) / "config.json"
    if not path.is_file():
        raise ValueError(
            f"{model!r} is no directory with config.json: "
            f"give one, or one of {', '.join(ARCHITECTURES)}"
        )
    return target_config(read_entries(path))
