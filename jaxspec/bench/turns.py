"""Conversations: later turns become prompts of their own, behind the answers to those before
them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jaxspec
from jaxspec.bench.prompts import Prompt


def ask_in_turns(
    params,
    prompts: Sequence[Prompt],
    *,
    options: dict[str, Any] | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> list[Prompt]:
    """The prompts, each followed by its `later` turns with everything said before them.

    The answers said are those of `ar`: decoding is lossless, so that every method would have given
    them, and all methods are measured in the same context. They are decoded here, untimed. Without
    a chat template a later turn follows the answer after an empty line.

    Args:
      options: keyword arguments of `jaxspec.decode`, as of the measurement.

    Raises:
      ValueError: as `jaxspec.decode`, for instance where a conversation outgrows the model's
        positions.
    """
    asked = []
    for prompt in prompts:
        asked.append(dataclasses.replace(prompt, later=()))
        for number, turn in enumerate(prompt.later, 1):
            progress(f"turn {number} of a conversation ({prompt.domain})")
            before = asked[-1]
            answer = jaxspec.decode(
                params, before.content, **(options or {}) | {"method": "ar"}
            ).text
            content = _followed(before.content, answer, turn)
            asked.append(dataclasses.replace(before, content=content, turn=number))
    return asked


def questions(prompts: Sequence[Prompt]) -> list[Hashable]:
    """What tells whether two prompts are turns of one question: equal entries are."""
    found: list[Hashable] = []
    for index, prompt in enumerate(prompts):
        found.append(found[-1] if prompt.turn else (prompt.domain, index))
    return found


def _followed(content, answer: str, turn: str):
    if isinstance(content, str):
        return f"{content}{answer}\n\n{turn}"
    return [
        *content,
        {"role": "assistant", "content": answer.strip()},
        {"role": "user", "content": turn},
    ]
