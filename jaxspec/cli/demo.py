"""`jaxspec demo`: compare decoding with and without a drafter on held-out prompts."""

from __future__ import annotations

import argparse
import sys

from jaxspec.cli.shared import asking, options

DIFFERENT = 1


def add_command(commands: options.Commands) -> None:
    """Add the command to the parser."""
    parser = options.add_parser(
        commands,
        "demo",
        run,
        "decode three held-out prompts with and without a drafter, and compare",
        "jaxspec demo --max-new-tokens 64",
    )
    parser.add_argument(
        "model",
        nargs="?",
        help="name of a model (default: smollm2-135m where it is installed, else mini)",
    )
    options.add_max_new_tokens(parser, 96)
    options.add_template(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the demonstration; the exit status is 1 if any output differs."""
    import jaxspec
    from jaxspec.bench.demo import choose_demo_model, demo
    from jaxspec.view.text import wants_colour
    from jaxspec.zoo.packaged import chats

    name, reason = (arguments.model, None) if arguments.model else choose_demo_model()
    print(reason or f"model: {name}", flush=True)
    if arguments.template and not chats(name):
        raise ValueError(f"--template: {name} continues texts, in no chat template: leave it out")
    params = jaxspec.load(name, dtype="float32")
    print(asking.describe_template(arguments), end="")
    agreed = demo(
        params,
        params.tokenizer,
        chat=chats(name),
        max_new_tokens=arguments.max_new_tokens,
        template=arguments.template,
        colour=wants_colour(sys.stdout.isatty()),
        show=_show,
    )
    return 0 if agreed else DIFFERENT


def _show(text: str) -> None:
    print(text, end="", flush=True)
