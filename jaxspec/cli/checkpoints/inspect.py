"""`jaxspec inspect`: describe a checkpoint."""

from __future__ import annotations

import argparse
import json

from jaxspec.cli.shared import options


def add_command(commands: options.Commands) -> None:
    """Add the command to the parser."""
    parser = options.add_parser(
        commands,
        "inspect",
        run,
        "describe a checkpoint: its kind, its target, and whether it can be loaded",
        "jaxspec inspect mini",
    )
    parser.add_argument("path", help="directory, hub id or name of a shipped model")
    parser.add_argument("--json", action="store_true", help="print JSON instead")


def run(arguments: argparse.Namespace) -> int:
    """Print what the checkpoint is."""
    from jaxspec.zoo.inspect import describe_checkpoint, render_description

    about = describe_checkpoint(arguments.path)
    print(json.dumps(about, indent=1) if arguments.json else render_description(about))
    return 0
