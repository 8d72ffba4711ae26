"""`jaxspec regenerate` and `jaxspec train`: recipes of `jaxspec.training`, which read their own
options.
"""

from __future__ import annotations

import argparse
import functools
import importlib

from jaxspec.cli.shared import options


def add_command(commands: options.Commands) -> None:
    """Add both commands to the parser."""
    _add_recipe(
        commands,
        "regenerate",
        "regenerate",
        "let a target answer prompts, for its drafters to learn from",
    )
    _add_recipe(
        commands,
        "train",
        "train_drafter",
        "train a drafter for a target; the same command again continues a run",
    )


def _add_recipe(commands: options.Commands, name: str, module: str, summary: str) -> None:
    """Add a command whose options, `rest`, a module of `jaxspec.training` parses."""
    # The recipe prints the help, too.
    parser = commands.add_parser(name, help=summary, add_help=False)
    parser.set_defaults(run=functools.partial(run, module), rest=[])


def run(module: str, arguments: argparse.Namespace) -> int:
    """Run a recipe.

    Raises:
      ImportError: a library of the `train` extra is missing.
      ValueError, OSError: see the recipe.
    """
    importlib.import_module(f"jaxspec.training.{module}").run(arguments.rest)
    return 0
