"""The subcommands of `jaxspec bench`: latency."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_commands(bench: argparse.ArgumentParser) -> None:
    """Register the subcommands with the parser of `bench`, which also works without one; each sets `run`."""
    commands = bench.add_subparsers(metavar="latency", help="instead of prompts: the pieces of a round, see its --help")
    latency = commands.add_parser("latency", help="time the pieces of a round of a named architecture with random weights")
    latency.set_defaults(run=_latency)
    add = latency.add_argument
    add("--arch", default="mini", help="see jaxspec.architectures (default: %(default)s)")
    add("--json", type=Path, metavar="OUT.json", help="write settings and results here")


def _latency(arguments: argparse.Namespace) -> int:
    from jaxspec.architectures import architecture

    architecture(arguments.arch)
    raise ValueError("bench latency: not wired yet")
