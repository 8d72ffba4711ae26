"""Options that the commands about adaptation share."""

from __future__ import annotations

import argparse
import dataclasses
import math
from typing import TYPE_CHECKING

from jaxspec.cli import options, values

if TYPE_CHECKING:
    from jaxspec.adapt import AdaptOptions
    from jaxspec.core.params import Params
    from jaxspec.io.text.prompt_files import LabelledPrompt


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the sizes of buffers and the rates."""
    add, default = parser.add_argument, options.DEFAULT
    add("--head-room", type=int, default=512, help=f"positions of a head-only update {default}")
    add("--full-room", type=int, default=1024, help=f"positions of a full update {default}")
    add("--head-rate", type=float, default=1e-4, help=f"its learning rate {default}")
    add("--full-rate", type=float, default=3e-5, help=f"its learning rate {default}")


def read_options(arguments: argparse.Namespace) -> AdaptOptions:
    """Read what `add_options` added.

    Raises:
      ValueError: a value is not above 0, or not finite.
    """
    from jaxspec.adapt import AdaptOptions

    for name in ("head_room", "full_room", "head_rate", "full_rate"):
        value = getattr(arguments, name)
        if not 0 < value < math.inf:
            option = name.replace("_", "-")
            raise ValueError(f"--{option} is {value}: give a number above 0")
    learner = dataclasses.replace(
        AdaptOptions().learner, head_rate=arguments.head_rate, full_rate=arguments.full_rate
    )
    room = {"head": arguments.head_room, "full": arguments.full_room}
    return AdaptOptions(learner=learner, room=room)


def load_inputs(arguments: argparse.Namespace) -> tuple[Params, list[LabelledPrompt]]:
    """Load the model with its drafters, and the file of prompts."""
    from jaxspec.io.text.prompt_files import read_prompts

    params = values.load_params(arguments)
    tokenizer, chat = params.tokenizer, values.read_chat(arguments)
    prompts = read_prompts(arguments.prompts, tokenizer, limit=arguments.limit, chat=chat)
    return params, prompts
