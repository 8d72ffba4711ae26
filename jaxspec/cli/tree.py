"""The subcommand `tree` of the `jaxspec` command, and `generate --show`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from jaxspec.cli import calibrate as cli_policies
from jaxspec.cli import options as cli_options


def add_commands(commands) -> None:
    """Register `tree` with argparse's `commands`."""
    tree = commands.add_parser(
        "tree",
        help="draw the draft tree of a round: probabilities, the accepted path, the bonus, and what a policy cut",
    )
    tree.set_defaults(run=_tree)
    tree.add_argument("model", help="mini, a hub id or a directory")
    tree.add_argument("prompt", help="text, or token ids for a model without a tokenizer")
    tree.add_argument(
        "--round",
        type=int,
        metavar="K",
        help="from 1 (default: the one that committed the most tokens)",
    )
    tree.add_argument(
        "--out",
        type=Path,
        metavar="OUT.svg",
        help="write it as .svg, .png, .pdf (matplotlib) or .txt instead",
    )
    cli_options.add_sources(tree)
    cli_options.add_prompt_form(tree)
    cli_options.add_method(tree)
    cli_options.add_decode(tree, max_new_tokens=64)
    cli_policies.add_policy(tree)


def _tree(arguments: argparse.Namespace) -> int:
    import jaxspec
    from jaxspec.view import notebook as show
    from jaxspec.view.pictures import tree_text, wants_colour
    from jaxspec.view.unpruned import uncut_tree

    cli_options.check_folders(arguments, "out")
    prompt = cli_options.formed(arguments.prompt, arguments)
    params = cli_options.load(arguments)
    options = cli_options.method_options(arguments)
    options["policy"] = cli_policies.policy_of(params, arguments.policy, options)
    out = jaxspec.decode(params, prompt, trace=True, **options)
    number = show.longest_round(out) if arguments.round is None else arguments.round
    view = show.tree(out, number, params)  # a round that is not there is told before another decode
    if options["policy"] is not None:
        view = show.tree(out, number, params, whole=uncut_tree(params, prompt, number, **options))
    if arguments.out:
        view.save(arguments.out)
        print(f"wrote {arguments.out}: {view.shown.title}")
    else:
        print(tree_text(view.shown, view.decode_token, colour=wants_colour(sys.stdout.isatty())))
    return 0


def show_text(params, prompt, options: dict[str, Any]) -> None:
    """Decode and print the text with accepted drafted tokens told from the target's own."""
    import jaxspec
    from jaxspec.view import notebook as show
    from jaxspec.view.pictures import token_text, wants_colour

    view = show.text(jaxspec.decode(params, prompt, trace=True, **options), params)
    print(token_text(view.out, view.decode, colour=wants_colour(sys.stdout.isatty())))
