"""`jaxspec tree`: draw the draft tree of a round."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from jaxspec.cli.shared import asking, options, values


def add_command(commands: options.Commands) -> None:
    """Add the command to the parser."""
    parser = options.add_parser(
        commands,
        "tree",
        run,
        "draw a round's draft tree: probabilities, the accepted path, the bonus token, "
        "and what a policy cut",
        'jaxspec tree mini "def fibonacci(n):" --raw --round 2 --out tree.svg',
    )
    options.add_model(parser, default=None)
    parser.add_argument("prompt", help="text, or token ids with --token-ids")
    parser.add_argument(
        "--round",
        type=int,
        metavar="K",
        help="number of the round, from 1 (default: the one that committed the most tokens)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="OUT.svg",
        help="write to a .txt, .svg, .png or .pdf file instead; pictures need matplotlib",
    )
    parser.add_argument(
        "--target",
        action="store_true",
        help="show the target's probability of each token too, before penalties, top-k and top-p, "
        "and JetSpec's rank-1 gap; the paper's is that with --score-temperature 1",
    )
    options.add_devices(parser)
    options.add_prompt_form(parser)
    options.add_call(parser)


def run(arguments: argparse.Namespace) -> int:
    """Decode the prompt and draw one of its rounds."""
    import jaxspec
    from jaxspec.view import notebook
    from jaxspec.view.text import format_tree, wants_colour
    from jaxspec.view.unpruned import grow_unpruned_tree

    values.check_folders(arguments, "out")
    params = values.load_params(arguments)
    prompt = asking.make_prompt(arguments.prompt, arguments, params.tokenizer)
    given = values.collect_call(params, arguments)
    if arguments.target and arguments.temperature and arguments.coupled == "on":
        raise ValueError(
            "the draft's scores hold the noise of coupled drafting: give --coupled off"
        )
    print(asking.describe_template(arguments), end="")
    out = jaxspec.decode(params, prompt, trace=True, **given)
    number = notebook.find_longest_round(out) if arguments.round is None else arguments.round
    # This refuses a wrong --round before decoding again.
    view = notebook.show_tree(out, number, params, target=arguments.target)
    if given["speculation"].policy is not None:
        whole = grow_unpruned_tree(params, prompt, number, **given)
        view = notebook.show_tree(out, number, params, whole=whole, target=arguments.target)
    if arguments.out:
        view.save(arguments.out)
        print(f"wrote {arguments.out}: {view.shown.title}")
    else:
        print(format_tree(view.shown, view.decode_token, colour=wants_colour(sys.stdout.isatty())))
    return 0
