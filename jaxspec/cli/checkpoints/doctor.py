"""`jaxspec doctor`: tell what runs on this machine, and check that a drafter fits its target."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from jaxspec.cli.shared import options, parse, values

WARNED = 1


def add_command(commands: options.Commands) -> None:
    """Add the command to the parser."""
    parser = options.add_parser(
        commands,
        "doctor",
        run,
        "tell what runs here, or check a drafter against its target with a short decode",
        "jaxspec doctor mini jetspec",
    )
    parser.add_argument(
        "model",
        nargs="?",
        help="name of a shipped model, hub id or directory (default: print versions, device and "
        "kernels, and check nothing)",
    )
    parser.add_argument("drafter", nargs="?", help="name of a shipped drafter, hub id or directory")
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
    """Print the diagnosis; the exit status is 1 if there are warnings.

    Raises:
      ValueError: a model without a drafter.
    """
    from jaxspec.zoo.doctor import diagnose, render_diagnosis
    from jaxspec.zoo.environment import render_environment, report_environment

    if arguments.model is None:
        here = report_environment()
        print(json.dumps(here, indent=1) if arguments.json else render_environment(here))
        return 0
    if arguments.drafter is None:
        raise ValueError(f"no drafter: {_advise(arguments.model)}")
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


def _advise(model: str) -> str:
    """Say which drafters could be checked with a model.

    Raises:
      FileNotFoundError: the model does not exist.
    """
    from jaxspec.io.hub import shipped
    from jaxspec.zoo.places import find_drafters, resolve_model

    own = shipped(find_drafters(model, resolve_model(model, weights=False)))
    named = f"one of {', '.join(own)}, or " if own else ""
    return f"give {named}a hub id or a directory after {model}"


def _read_prompts(path: Path, model: str) -> list[str] | list[list[int]]:
    """Read one prompt per line, as token ids if the model has no tokenizer."""
    from jaxspec.io.text.tokenizer import load_tokenizer
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
