"""`jaxspec check`: prove that jaxspec works on this device, and measure how fast."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from jaxspec.cli.shared import options, values

WRONG = 1


def add_command(commands: options.Commands) -> None:
    """Add the command to the parser."""
    parser = options.add_parser(
        commands,
        "check",
        run,
        "check kernels, losslessness and speed on this device, the most important first",
        "jaxspec check --minutes 8 --json check.json",
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=8.0,
        help=f"begin no further measurement after this time {options.DEFAULT}",
    )
    parser.add_argument(
        "--tp",
        type=int,
        metavar="N",
        help="run texts, rounds and prefills with a target that the first N devices share "
        "(default: one device holds it)",
    )
    parser.add_argument(
        "--resume",
        type=Path,
        metavar="FILE",
        help="go on with a check that ended early: the steps in its --json FILE are not run again",
    )
    parser.add_argument(
        "--steps",
        metavar="NAME;...",
        help="run these steps only, in this order, such as 'lossless;rounds: ar;profile' "
        "(default: all)",
    )
    options.add_json_file(parser)


def run(arguments: argparse.Namespace) -> int:
    """Check, print the report; the exit status is 1 if something is wrong, not if it is slow.

    After an error that ends this process' use of the GPU, a new process in its place goes on.
    """
    from jaxspec.bench.check.check_goals import is_correct
    from jaxspec.bench.check.check_report import render_check
    from jaxspec.bench.check.plan_check import check_device
    from jaxspec.call.arguments import check_positive

    check_positive("--minutes", arguments.minutes)
    values.check_folders(arguments, "json")
    before = _read(arguments.resume)
    report = check_device(
        arguments.minutes,
        progress=lambda line: print(line, file=sys.stderr, flush=True),
        save=lambda report: values.save_json(arguments.json, report),
        mesh=values.make_mesh(arguments.tp),
        before=before,
        only=_split(arguments.steps),
    )
    if "fault" in report:
        _go_on(arguments, report)
    print(render_check(report))
    return 0 if is_correct(report) else WRONG


def _split(names: str | None) -> list[str]:
    """Read --steps; names hold commas."""
    return [name.strip() for name in (names or "").split(";") if name.strip()]


def _read(path: Path | None) -> dict[str, Any] | None:
    """Read the report of --resume.

    Raises:
      ValueError: the file cannot be read, or is no report.
    """
    if path is None:
        return None
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
        report["steps"], report["seconds"], report["sizes"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"--resume {path}: not a report of jaxspec check ({error})") from None
    return report


def _go_on(arguments: argparse.Namespace, report: dict[str, Any]) -> None:
    """Replace this process by one that runs the other steps."""
    print(
        f"{report['fault']} broke this process' use of the GPU: a new one goes on", file=sys.stderr
    )
    path = arguments.json or Path(tempfile.mkdtemp()) / "check.json"
    values.save_json(path, report)
    left = max(arguments.minutes - report["seconds"] / 60, 0.01)
    command = [sys.executable, "-m", "jaxspec", "check", "--minutes", f"{left:.2f}"]
    command += ["--resume", str(path), "--json", str(path)]
    if arguments.tp:
        command += ["--tp", str(arguments.tp)]
    if arguments.steps:
        command += ["--steps", arguments.steps]
    sys.stdout.flush()
    os.execv(sys.executable, command)
