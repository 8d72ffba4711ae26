"""`jaxspec generate`: complete a prompt."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from jaxspec.cli.shared import asking, options, parse, values

if TYPE_CHECKING:
    from jaxspec.core.params import Params


def add_command(commands: options.Commands) -> None:
    """Add the command to the parser."""
    parser = options.add_parser(
        commands,
        "generate",
        run,
        "complete a prompt; the text streams to the terminal",
        'jaxspec generate mini --raw --prompt "def fibonacci(n):" --max-new-tokens 100',
    )
    options.add_model(parser)
    options.add_devices(parser)
    options.add_processes(parser)
    prompt = parser.add_mutually_exclusive_group()
    prompt.add_argument(
        "--prompt", help="text to complete (default: --prompt-file, else standard input)"
    )
    prompt.add_argument("--prompt-file", type=parse.parse_file, help="file that holds the prompt")
    options.add_prompt_form(parser)
    parser.add_argument(
        "--show",
        action="store_true",
        help="print the text when it is complete, with accepted drafted tokens marked",
    )
    parser.add_argument(
        "--json", action="store_true", help="print text, tokens, counts and timings as JSON instead"
    )
    options.add_call(parser)


def run(arguments: argparse.Namespace) -> int:
    """Decode the prompt and print it as the options ask."""
    import jaxspec
    from jaxspec.tuner.tuner import process_tuner

    text = _read_prompt(arguments)
    params = values.load_params(arguments)
    prompt = asking.make_prompt(text, arguments, params.tokenizer)
    # Weights then lie as is fastest with a fixed budget too.
    given = values.collect_call(params, arguments) | {"tuner": process_tuner()}
    if not arguments.json:  # to where no text goes
        print(asking.describe_template(arguments), end="", file=sys.stderr)
    if arguments.json:
        out = jaxspec.decode(params, prompt, **given)
        report = {"text": out.text, "tokens": out.tokens, "stats": out.stats.to_dict()}
        print(json.dumps(report | ({"template": arguments.template} if arguments.template else {})))
    elif arguments.show:
        _print_marked(params, prompt, given)
    else:
        for piece in jaxspec.stream(params, prompt, **given):
            text = piece if isinstance(piece, str) else "".join(f"{token} " for token in piece)
            print(text, end="", flush=True)
        print()
    return 0


def _read_prompt(arguments: argparse.Namespace) -> str:
    """Read the prompt from the command line, a file or standard input."""
    if arguments.prompt is not None:
        return arguments.prompt
    if arguments.prompt_file is None and sys.stdin.isatty():
        raise ValueError("no prompt: give --prompt, --prompt-file or text on standard input")
    return values.read_text(arguments.prompt_file).removesuffix("\n")


def _print_marked(params: Params, prompt: Any, given: dict[str, Any]) -> None:
    """Decode and print the text with accepted drafted tokens marked."""
    import jaxspec
    from jaxspec.view import notebook
    from jaxspec.view.text import format_tokens, wants_colour

    view = notebook.show_text(jaxspec.decode(params, prompt, trace=True, **given), params)
    print(format_tokens(view.out, view.decode, colour=wants_colour(sys.stdout.isatty())))
