"""`jaxspec convert`: write a checkpoint in another format."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from jaxspec.cli.shared import options
from jaxspec.zoo.convert import convert, is_hub_id, list_layouts, read_verifier


def add_command(commands: options.Commands) -> None:
    """Add the command to the parser."""
    parser = options.add_parser(
        commands,
        "convert",
        run,
        "write a drafter in another checkpoint format",
        "jaxspec convert dflash converted/ --to speculators --target smollm2-135m",
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
        "packed: a drafter in 6 bits per weight, a target bit for bit, for jaxspec only; "
        "bfloat16: unpack it",
    )
    parser.add_argument(
        "--target",
        help="the model that the drafter serves; speculators files carry its embeddings",
    )
    parser.add_argument(
        "--verifier",
        metavar="HUB_ID",
        help="name of the target in speculators files, by which speculators and vLLM load it "
        "(default: the hub id that is known for --target)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Convert the drafter and say where it was written."""
    from jaxspec.zoo.pack import pack_checkpoint, unpack_checkpoint

    places, verifier = (arguments.source, arguments.destination), arguments.verifier
    if verifier is not None and arguments.to in ("packed", "bfloat16"):
        raise ValueError(
            "a verifier is named in the speculators schema alone: give --to speculators"
        )
    if arguments.to == "packed":
        written = pack_checkpoint(*places, arguments.target)
    elif arguments.to == "bfloat16":
        written = unpack_checkpoint(*places, arguments.target)
    else:
        written = convert(*places, arguments.to, arguments.target, verifier)
    print(f"wrote {written}")
    if arguments.to == "speculators" and not is_hub_id(name := read_verifier(written)):
        note = f"it names the target {name!r}, which is no hub id: speculators loads the target by"
        print(f"{note} its name, so convert again with --verifier OWNER/NAME", file=sys.stderr)
    return 0
