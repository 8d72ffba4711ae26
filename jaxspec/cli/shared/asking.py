"""Turn the options of prompts and of the chat template into what the library takes."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxspec.io.text.prompt_files import LabelledPrompt
    from jaxspec.io.text.tokenizer import Tokenizer


def read_chat(arguments: argparse.Namespace) -> bool | None:
    """Return the value of --chat as `read_prompts` takes it."""
    return None if arguments.chat is None else arguments.chat == "on"


def read_prompts(
    arguments: argparse.Namespace, tokenizer: Tokenizer | None, default: Path | None = None
) -> list[LabelledPrompt]:
    """Read the prompts that --prompts, --limit and the options of `add_chat` name.

    Args:
      default: the source without --prompts.

    Raises:
      ValueError: a variable of the chat template is given, and a prompt is in no template.
    """
    from jaxspec.io.text import prompt_files

    prompts = prompt_files.read_prompts(
        arguments.prompts or default,
        tokenizer,
        limit=arguments.limit,
        chat=read_chat(arguments),
        boxed=None if arguments.boxed is None else arguments.boxed == "on",
    )
    raw = next((one.domain for one in prompts if not isinstance(one.content[0], dict)), None)
    if getattr(arguments, "template", None) and raw is not None:
        raise ValueError(f"--template: prompts of {raw} are in no chat template: give --chat on")
    return prompts


def describe_template(arguments: argparse.Namespace) -> str:
    """Return a line with the variables of the chat template that were set; "" without any."""
    given = (arguments.template or {}).items()
    shown = ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in given)
    return f"chat template: {shown}\n" if shown else ""


def make_prompt(
    text: str, arguments: argparse.Namespace, tokenizer: Tokenizer | None
) -> str | list[int] | list[dict[str, str]]:
    """Make the prompt that `text` is for a model's tokenizer under the options of
    `add_prompt_form`.

    Raises:
      ValueError: an item is not an integer, with --token-ids.
    """
    if not arguments.token_ids:
        chat = not arguments.raw and tokenizer is not None and tokenizer.has_chat_template
        return [{"role": "user", "content": text}] if chat else text
    ids = text.replace(",", " ").split()
    wrong = next((item for item in ids if not item.isdecimal()), None)
    if wrong is not None:
        raise ValueError(
            f"{wrong!r} is not a token id: with --token-ids, "
            "give integers separated by spaces or commas"
        )
    return [int(item) for item in ids]
