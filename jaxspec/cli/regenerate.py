"""`jaxspec regenerate`: text of the target's own, for `jaxspec train`."""

from __future__ import annotations

from jaxspec.cli import options
from jaxspec.cli.train import add_recipe


def add_command(commands: options.Commands) -> None:
    """Add the command to the parser."""
    add_recipe(
        commands,
        "regenerate",
        "regenerate",
        "let a target answer prompts, for its drafters to learn from",
    )
