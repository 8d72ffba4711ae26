"""`jaxspec convert`: write a drafter in another checkpoint format."""

from __future__ import annotations

import argparse
from pathlib import Path

from jaxspec.cli import options
from jaxspec.zoo.convert import convert, list_layouts


def add_command(commands: options.Commands) -> None:
    """Add the command to the parser."""
    parser = options.add_parser(
        commands,
        "convert",
        run,
        "write a drafter in another checkpoint format",
        "jaxspec convert dflash converted/ --to speculators --target mini",
    )
    parser.add_argument(
        "source", help="directory or hub id; with --target, also a drafter that ships with it"
    )
    parser.add_argument("destination", type=Path, help="directory to create")
    parser.add_argument(
        "--to",
        required=True,
        choices=(*list_layouts(), "packed", "bfloat16"),
        help="a drafter's own name: its native layout, which vLLM and SGLang load; speculators: "
        "for vLLM; "
        "packed: the same layout in 6 bits per weight, for jaxspec only; bfloat16: unpack it",
    )
    parser.add_argument(
        "--target",
        help="the model that the drafter serves; speculators files carry its embeddings",
    )


def run(arguments: argparse.Namespace) -> int:
    """Convert the drafter and say where it was written."""
    from jaxspec.zoo.pack import pack_drafter, unpack_drafter

    places = (arguments.source, arguments.destination)
    if arguments.to == "packed":
        written = pack_drafter(*places, arguments.target)
    elif arguments.to == "bfloat16":
        written = unpack_drafter(*places, arguments.target)
    else:
        written = convert(*places, arguments.to, arguments.target)
    print(f"wrote {written}")
    return 0
