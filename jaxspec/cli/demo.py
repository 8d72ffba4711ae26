"""`jaxspec demo`: compare decoding with and without a drafter on held-out prompts."""

from __future__ import annotations

import argparse

from jaxspec.cli import options

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
    options.add_max_new_tokens(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the demonstration; the exit status is 1 if any output differs."""
    import jaxspec
    from jaxspec.bench.demo import demo
    from jaxspec.io.tokenizer import load_tokenizer

    params = jaxspec.load("mini", dtype="float32")
    tokenizer = load_tokenizer(params.spec.tokenizer)
    agreed = demo(params, tokenizer, max_new_tokens=arguments.max_new_tokens)
    return 0 if agreed else DIFFERENT
