"""`jaxspec reproduce`: try the papers' claims again; a clone's `benchmarks/` has the records."""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

from jaxspec.cli.shared import options

_LABORATORY = "benchmarks.reproduce.reproduce_command"


def add_command(commands: options.Commands) -> None:
    """Add the command to the parser; the laboratory parses its options, and prints the help."""
    parser = commands.add_parser(
        "reproduce", help="try the papers' claims on a model (in a clone)", add_help=False
    )
    parser.set_defaults(run=run, rest=[])


def run(arguments: argparse.Namespace) -> int:
    """Run the laboratory's command.

    Raises:
      ValueError: there is no clone around this package.
    """
    root = Path(__file__).parents[2]
    if not (root / _LABORATORY.replace(".", "/")).with_suffix(".py").is_file():
        raise ValueError(
            "the records of claims are not in this installation: clone the repository, "
            "run `pip install -e .[train,bench]` in it, and call jaxspec reproduce there"
        )
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    return importlib.import_module(_LABORATORY).run(arguments.rest)
