"""`jaxspec bench report`: turn a saved result into Markdown."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from jaxspec.cli.shared import options


def add_command(commands: options.Commands) -> None:
    """Add the command to the parser of `bench`."""
    parser = options.add_parser(
        commands,
        "bench report",
        run,
        "turn a saved result into a Markdown report with plots",
        "jaxspec bench report out.json --out report/",
    )
    add = parser.add_argument
    add("result", type=Path, metavar="RESULT.json", help="written by `bench --json`")
    add("--out", type=Path, required=True, metavar="DIR", help="folder to write report.md to")


def run(arguments: argparse.Namespace) -> int:
    """Write the report."""
    from jaxspec.bench.report.markdown import write_report

    print(f"wrote {write_report(_read_result(arguments.result), arguments.out)}")
    return 0


def _read_result(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{path} is not JSON ({error.msg}): give a file that `jaxspec bench --json` wrote"
        ) from None
