"""Entry point of the `jaxspec` command: assembles the subcommands and reports errors."""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Callable

import jaxspec
from jaxspec.cli import adapt, chat, demo, generate, serve, train, tree
from jaxspec.cli.bench import methods as bench
from jaxspec.cli.checkpoints import convert, doctor, inspect
from jaxspec.cli.device import aot, calibrate, check, plan
from jaxspec.cli.shared.parser import Parser
from jaxspec.core.runtime import background, distribution, interrupts
from jaxspec.core.runtime.jax_settings import own_process

USER_ERROR = 2
_FULL = (errno.ENOSPC, errno.EDQUOT)
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
    inspect,
    convert,
    doctor,
    aot,
    plan,
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


def report_errors(call: Callable[[], int]) -> int:
    """Run a command; a user's mistake is one line on standard error, and the exit status 2."""
    # transformers is imported only for tokenizers; keep it from warning that PyTorch is missing.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    try:
        distribution.check()
        with own_process():
            return call()
    except BrokenPipeError:  # the pipe's reader is gone, so nothing more can be written
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, OSError, ImportError) as error:
        print(f"jaxspec: error: {_describe(error)}", file=sys.stderr)
        return USER_ERROR
    except KeyboardInterrupt:
        return interrupts.STATUS


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


def _describe(error: Exception) -> str:
    """Return the error's message as one line."""
    if isinstance(error, OSError) and error.strerror and error.filename:
        advice = ": free some, or write elsewhere" if error.errno in _FULL else ""
        return f"{error.filename}: {error.strerror}{advice}"
    return " ".join(str(error).split())
