"""Options that several subcommands of `jaxspec` share, and what they stand for."""

from __future__ import annotations

import argparse
import sys
from typing import Any

_DECODE_OPTIONS = (
    "max_new_tokens",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "seed",
    "ignore_eos",
    "block_size",
    "depth",
    "acceptance",
    "score_temperature",
)


def add_model(parser: argparse.ArgumentParser) -> None:
    """The options that name a model and its drafters."""
    parser.add_argument(
        "--model", default="mini", help="mini, a hub id or a directory (default: %(default)s)"
    )
    add_sources(parser)


def add_sources(parser: argparse.ArgumentParser) -> None:
    """The options of loading a model whose name is known."""
    parser.add_argument(
        "--drafter",
        action="append",
        metavar="[NAME=]SOURCE",
        help="a shipped drafter's name, hub id or directory; with NAME= may be repeated (default: all that ship)",
    )
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16", "float16"), help="default: what suits the device"
    )
    parser.add_argument(
        "--quantize", choices=("int8", "fp8"), help="store the target's weights in one byte each"
    )


def add_prompt_form(parser: argparse.ArgumentParser) -> None:
    """The options that say what a prompt is."""
    parser.add_argument("--chat", action="store_true", help="the prompt is a user's chat message")
    parser.add_argument(
        "--token-ids",
        action="store_true",
        help="the prompt is token ids, separated by spaces or commas",
    )


def add_method(parser: argparse.ArgumentParser) -> None:
    """The options that choose how a single prompt is decoded."""
    add = parser.add_argument
    add("--stop", action="append", default=[], metavar="TEXT", help="stop string; may be repeated")
    add(
        "--stop-id",
        action="append",
        default=[],
        type=int,
        metavar="ID",
        help="stop token; may be repeated",
    )
    add("--method", help="ar, or the name of a drafter (default: the model's first)")
    add(
        "--builder",
        help="how candidates become a tree: chain, best_first, expand, beam, static, dynamic or rank_guided, with "
        "+score and /settings, as in expand/w3/fanout=top2gap, best_first+hybrid0.3, static/paths=[[0],[0,0],[1]] "
        "or static/paths=tree.json (default: what suits the drafter)",
    )
    add(
        "--coupled",
        choices=("on", "off"),
        default="on",
        help="draft under the target's noise (default: on)",
    )


def add_decode(
    parser: argparse.ArgumentParser, max_new_tokens: int = 256, several: bool = False
) -> None:
    """The options of decoding that `bench` shares.

    Args:
      several: whether more than one temperature may be given.
    """
    add = parser.add_argument
    add("--max-new-tokens", type=int, default=max_new_tokens, help="(default: %(default)s)")
    if several:
        add_temperatures(parser)
    else:
        add("--temperature", type=float, default=0.0, help="0 is greedy (default: %(default)s)")
    add("--top-k", type=int, help="sample among the k most probable tokens")
    add(
        "--top-p",
        type=float,
        help="sample among the most probable tokens that hold this much probability",
    )
    add(
        "--min-p",
        type=float,
        help="sample among tokens at least this fraction as probable as the first",
    )
    add("--seed", type=int, default=0, help="(default: %(default)s)")
    add("--ignore-eos", action="store_true", help="do not stop at the model's end-of-text tokens")
    add(
        "--budget",
        type=int,
        default=32,
        help="rows verified in a round, the root included (default: %(default)s)",
    )
    add(
        "--block-size",
        type=int,
        help="slots of the drafter's block, the anchor included (default: as trained)",
    )
    add(
        "--depth",
        type=int,
        help="longest drafted path of drafters that work in steps (default: the drafter's own)",
    )
    add(
        "--acceptance",
        default="match",
        help="match, sequential or rejection (default: %(default)s)",
    )
    add(
        "--score-temperature",
        type=float,
        help="divisor of draft scores; below 1, deeper trees (default: the drafter's own)",
    )


def add_temperatures(parser: argparse.ArgumentParser) -> None:
    """The option of measurements that take several temperatures."""
    what = "0 is greedy; several, as in 0,1, are measured one after the other (default: 0)"
    parser.add_argument("--temperature", type=_numbers, default=(0.0,), help=what)


def _numbers(text: str) -> tuple[float, ...]:
    """Numbers separated by commas, each once."""
    try:
        return tuple(dict.fromkeys(float(number) for number in text.split(",")))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no list of numbers: write them as in 0,1"
        ) from None


def check_folders(arguments: argparse.Namespace, *names: str) -> None:
    """Refuse files that could not be written, before anything is measured.

    Raises:
      FileNotFoundError: the folder of an option that was given is not there.
    """
    for name in names:
        path = getattr(arguments, name)
        if path and not path.absolute().parent.is_dir():
            raise FileNotFoundError(
                f"--{name.replace('_', '-')}: there is no directory {path.parent}"
            )


def progress(line: str) -> None:
    """Show a line in place of the last one, on a terminal alone."""
    if sys.stderr.isatty():
        print(f"\r{line}\033[K", end="", file=sys.stderr, flush=True)


def load(arguments: argparse.Namespace):
    """The model and drafters that the options name."""
    import jaxspec

    return jaxspec.load(
        arguments.model,
        drafter=drafters(arguments),
        dtype=arguments.dtype,
        quantize=arguments.quantize,
    )


def drafters(arguments: argparse.Namespace):
    """The value of --drafter as `jaxspec.load` takes it."""
    named = dict(item.partition("=")[::2] for item in arguments.drafter or () if "=" in item)
    plain = [item for item in arguments.drafter or () if "=" not in item]
    if len(plain) + bool(named) > 1:
        raise ValueError("give one --drafter SOURCE, or each as --drafter NAME=SOURCE")
    return named or (plain[0] if plain else None)


def decode_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Keyword arguments of `jaxspec.decode` from `add_decode`."""
    return {name: getattr(arguments, name) for name in _DECODE_OPTIONS}


def method_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Keyword arguments of `jaxspec.decode` from `add_decode` and `add_method`."""
    return decode_options(arguments) | {
        "stop": (*arguments.stop, *arguments.stop_id),
        "method": arguments.method,
        "builder": arguments.builder,
        "budget": arguments.budget,
        "coupled": arguments.coupled == "on",
    }


def formed(text: str, arguments: argparse.Namespace):
    """The prompt that a text is under the options of `add_prompt_form`.

    Raises:
      ValueError: not token ids.
    """
    if not arguments.token_ids:
        return [{"role": "user", "content": text}] if arguments.chat else text
    ids = text.replace(",", " ").split()
    wrong = next((item for item in ids if not item.isdecimal()), None)
    if wrong is not None:
        raise ValueError(
            f"{wrong!r} is not a token id: with --token-ids the prompt is integers separated by spaces or commas"
        )
    return [int(item) for item in ids]


def parse_sizes(text: str) -> tuple[int, ...]:
    """Whole numbers separated by commas, each once; 8k is 8192."""
    numbers = (
        int(item[:-1]) * 1024 if item[-1:] in ("k", "K") else int(item) for item in text.split(",")
    )
    return tuple(dict.fromkeys(numbers))
