"""Prompts of measurements that need no file: those of `jaxspec demo` stand in for it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from jaxspec.cli.shared import asking, options, parse

if TYPE_CHECKING:
    from jaxspec.io.text.prompt_files import LabelledPrompt
    from jaxspec.io.text.tokenizer import Tokenizer


def add_prompts(parser: argparse.ArgumentParser) -> None:
    """Add the options that name prompts, and the limit of the answers' tokens."""
    add = parser.add_argument
    add(
        "--prompts",
        type=parse.parse_prompts,
        help=f"{options.PROMPT_FILE} (default: those of `jaxspec demo`)",
    )
    add("--limit", type=int, help="prompts per domain (default: all)")
    options.add_chat(parser)
    options.add_max_new_tokens(parser, 128)


def add_sampling(parser: argparse.ArgumentParser) -> None:
    """Add the temperature and the seed of the answers."""
    parser.add_argument(
        "--temperature", type=float, default=0.0, help=f"0 is greedy decoding {options.DEFAULT}"
    )
    options.add_seed(parser)


def read_prompts(
    arguments: argparse.Namespace, tokenizer: Tokenizer | None
) -> list[LabelledPrompt]:
    """Read the prompts of `add_prompts`; models that ship answer the demo's questions."""
    from jaxspec.bench.demo import DEMO_PROMPTS, DEMO_QUESTIONS
    from jaxspec.zoo.packaged import chats

    own = DEMO_QUESTIONS if chats(arguments.model) else DEMO_PROMPTS
    return asking.read_prompts(arguments, tokenizer, own)


def collect_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return keyword arguments of `jaxspec.decode` from `add_prompts` and `add_sampling`."""
    return {name: getattr(arguments, name) for name in ("max_new_tokens", "temperature", "seed")}
