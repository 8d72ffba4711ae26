"""Entry point of the `jaxspec` command: assembles the subcommands."""

from __future__ import annotations

import argparse
import sys

import jaxspec
from jaxspec.cli import adapt, chat, checkpoints, demo, generate, reproduce, serve, train, tree
from jaxspec.cli.bench import methods as bench
from jaxspec.cli.device import aot, calibrate, check, plan
from jaxspec.cli.shared.errors import report_errors
from jaxspec.cli.shared.parser import Parser
from jaxspec.core.runtime import background, interrupts

COMMANDS = (
    generate,
    chat,
    serve,
    tree,
    demo,
    check,
    bench,
    calibrate,
    train,
    adapt,
    *checkpoints.COMMANDS,
    aot,
    plan,
    reproduce,
)


def main(argv: list[str] | None = None) -> int:
    """Run the command line.

    Args:
      argv: arguments after the program's name (default: those of this process, which Ctrl-C then
        ends, see `jaxspec.core.runtime.interrupts`).

    Returns:
      The exit status: 0; 1 if the demo's outputs differ, the doctor warns or a program does not
      compile; 2 for a mistake of the user's; 130 after an interrupt.
    """
    if argv is not None:
        return _run(argv)
    interrupts.watch()
    status = _run(None)
    if status == interrupts.STATUS or background.is_compiling():
        interrupts.leave(status)
    return status


def _run(argv: list[str] | None) -> int:
    def call() -> int:
        arguments = parse(argv)
        return arguments.run(arguments)

    return report_errors(call)


def parse(argv: list[str] | None) -> argparse.Namespace:
    """Parse a command line, as `main` takes it; commands with `rest` parse what follows them."""
    parser = make_parser()
    arguments, rest = parser.parse_known_args(_join(sys.argv[1:] if argv is None else argv))
    if hasattr(arguments, "rest"):
        arguments.rest = rest
    return arguments


def _join(words: list[str]) -> list[str]:
    """Join the two words of a command such as `bench latency`."""
    name = " ".join(words[:2])
    known = {f"bench {one.__name__.rpartition('.')[2]}" for one in bench.COMMANDS}
    return [name, *words[2:]] if name in known else words


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of all commands; parsed arguments have `run`, the command's function."""
    parser = Parser(
        prog="jaxspec", description="Lossless speculative decoding with draft trees, in JAX."
    )
    parser.add_argument("--version", action="version", version=f"jaxspec {jaxspec.__version__}")
    commands = parser.add_subparsers(required=True, metavar="command")
    for command in COMMANDS:
        command.add_command(commands)
    return parser
