"""`jaxspec doctor`: check that a drafter fits its target."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from jaxspec.cli import options, parse, values

WARNED = 1


def add_command(commands: options.Commands) -> None:
    """Add the command to the parser."""
    parser = options.add_parser(
        commands,
        "doctor",
        run,
        "check a drafter against its target with a short decode",
        "jaxspec doctor mini jetspec",
    )
    parser.add_argument("model", help="name of a shipped model, hub id or directory")
    parser.add_argument("drafter", help="name of a shipped drafter, hub id or directory")
    options.add_max_new_tokens(parser, 32)
    parser.add_argument(
        "--prompts",
        type=parse.parse_file,
        help="file with one prompt per line; token ids for a model without a tokenizer "
        "(default: built-in prompts)",
    )
    options.add_dtype(parser)
    parser.add_argument("--json", action="store_true", help="print JSON instead")


def run(arguments: argparse.Namespace) -> int:
    """Print the diagnosis; the exit status is 1 if there are warnings."""
    from jaxspec.zoo.doctor import diagnose, render_diagnosis

    path = arguments.prompts
    result = diagnose(
        arguments.model,
        arguments.drafter,
        prompts=None if path is None else _read_prompts(path, arguments.model),
        max_new_tokens=arguments.max_new_tokens,
        dtype=arguments.dtype,
    )
    print(json.dumps(result, indent=1) if arguments.json else render_diagnosis(result))
    return WARNED if result["warnings"] else 0


def _read_prompts(path: Path, model: str) -> list[str] | list[list[int]]:
    """Read one prompt per line, as token ids if the model has no tokenizer."""
    from jaxspec.io.tokenizer import load_tokenizer
    from jaxspec.zoo.places import resolve_model

    lines = [line for line in values.read_text(path).splitlines() if line.strip()]
    if load_tokenizer(str(resolve_model(model))) is not None:
        return lines
    try:
        return [[int(token) for token in line.split()] for line in lines]
    except ValueError:
        raise ValueError(
            f"{path}: {model} has no tokenizer, so its prompts are token ids separated by spaces"
        ) from None
