"""Turn prompts into token ids."""

from __future__ import annotations

import numbers
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxspec.core.config import TargetConfig

# Text, token ids, or chat messages [{"role": …, "content": …}, …].
Prompt = str | Sequence[int] | Sequence[dict[str, Any]]
Prompts = Sequence[Prompt]


def is_batch(prompt: Prompt | Prompts) -> bool:
    """True for a list of prompts; text, token ids and chat messages are single prompts."""
    if isinstance(prompt, str) or len(prompt) == 0:
        return False
    if hasattr(prompt, "ndim"):
        return prompt.ndim > 1
    return not isinstance(prompt[0], numbers.Integral | dict)


def is_chat(prompt: Prompt | Prompts) -> bool:
    """True for one prompt of chat messages."""
    return len(prompt) > 0 and isinstance(prompt[0], dict)


def to_ids(
    prompt: Prompt, tokenizer: Any, config: TargetConfig, template: Mapping[str, Any] | None = None
) -> list[int]:
    """Tokenize one prompt; `template` holds variables of the chat template, for messages.

    Raises:
      ValueError: the prompt is empty, needs a tokenizer that the model lacks, or holds ids without
        a row in the embedding table, which the tokenizer may know nevertheless.
    """
    if isinstance(prompt, str) or is_chat(prompt):
        if tokenizer is None:
            raise ValueError(
                "this model has no tokenizer: pass token ids, or load a directory that holds one"
            )
        text, variables = isinstance(prompt, str), template or {}
        ids = tokenizer.encode(prompt) if text else tokenizer.chat(prompt, **variables)
    else:
        given: Any = np.asarray(prompt).tolist() if hasattr(prompt, "ndim") else prompt
        ids = [int(token) for token in given]
    if not ids:
        raise ValueError("empty prompt: give at least one token")
    wrong = next((token for token in ids if not 0 <= token < config.vocab_size), None)
    if wrong is not None:
        raise ValueError(_describe_beyond(wrong, config.vocab_size, tokenizer))
    return ids


def _describe_beyond(token: int, rows: int, tokenizer: Any) -> str:
    """Say why a prompt may not hold a token that has no row in the embedding table."""
    name = getattr(tokenizer, "name_token", lambda token: None)(token)
    if name is None:
        return f"token id {token} is outside the vocabulary of {rows}: use the model's tokenizer"
    return (
        f"token id {token}, {name!r}, is outside the vocabulary of {rows}: it was added to the "
        "tokenizer after the model was made; leave it out of the prompt"
    )


def number_sequences(prompts: list[list[int]]) -> np.ndarray:
    """Number the sequences, uint32 [B], to key their sampling noise.

    The number is a checksum of the prompt plus its earlier occurrences in the list. So noise does
    not depend on the other prompts of a batch, and repeats of a prompt are independent samples.
    """
    seen: dict[tuple[int, ...], int] = {}
    numbers = []
    for prompt in map(tuple, prompts):
        numbers.append(
            (zlib.crc32(np.asarray(prompt, "<i4").tobytes()) + seen.get(prompt, 0)) % 2**32
        )
        seen[prompt] = seen.get(prompt, 0) + 1
    return np.asarray(numbers, np.uint32)


def pad(prompts: list[list[int]], width: int) -> tuple[np.ndarray, np.ndarray]:
    """Pad prompts on the right to int32 [B, width]; return them with their lengths int32 [B]."""
    tokens = np.zeros((len(prompts), width), np.int32)
    for row, prompt in zip(tokens, prompts, strict=True):
        row[: len(prompt)] = prompt
    return tokens, np.asarray([len(prompt) for prompt in prompts], np.int32)
