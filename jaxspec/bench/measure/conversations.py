"""Conversations: make each later turn a prompt that holds the whole conversation before it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jaxspec
from jaxspec.call.options import group_options
from jaxspec.core.params import Params
from jaxspec.io.text.prompt_files import LabelledPrompt


def ask_conversations(
    params: Params,
    prompts: Sequence[LabelledPrompt],
    *,
    options: dict[str, Any] | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> list[LabelledPrompt]:
    """Add each prompt's `later` turns as prompts that hold the whole conversation before them.

    Answers are decoded here with `ar`, untimed. Decoding is lossless, so every method would give
    the same answers, and all methods are measured in the same context. Without a chat template a
    later turn follows the answer after an empty line.

    Args:
      options: keyword arguments of `jaxspec.decode`, the same as in the measurement.

    Raises:
      ValueError: as `jaxspec.decode`, for instance if a conversation outgrows the model's
        positions.
    """
    asked = []
    for prompt in prompts:
        asked.append(dataclasses.replace(prompt, later=()))
        for number, turn in enumerate(prompt.later, 1):
            progress(f"turn {number} of a conversation ({prompt.domain})")
            before = asked[-1]
            answer = jaxspec.decode(
                params, before.content, **group_options(**(options or {}) | {"drafter": "ar"})
            ).text
            content = _append_turn(before.content, answer, turn)
            asked.append(dataclasses.replace(before, content=content, turn=number))
    return asked


def number_questions(prompts: Sequence[LabelledPrompt]) -> list[Hashable]:
    """Give turns of one question equal keys, and turns of different questions different ones."""
    found: list[Hashable] = []
    for index, prompt in enumerate(prompts):
        found.append(found[-1] if prompt.turn else (prompt.domain, index))
    return found


def _append_turn(content: Any, answer: str, turn: str) -> Any:
    if isinstance(content, str):
        return f"{content}{answer}\n\n{turn}"
    return [
        *content,
        {"role": "assistant", "content": answer.strip()},
        {"role": "user", "content": turn},
    ]
