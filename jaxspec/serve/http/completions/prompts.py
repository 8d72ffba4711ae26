"""What the endpoint needs of a tokenizer, and prompts as answers repeat them: OpenAI's echo."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple, Protocol

from jaxspec.call.text.detokenize import Detokenizer
from jaxspec.io.text.tokenizer import replace_surrogates


class Tokens(Protocol):
    """What the endpoint needs of a tokenizer, see `jaxspec.io.text.tokenizer.Tokenizer`."""

    @property
    def info(self) -> dict[str, Any]: ...
    @property
    def has_chat_template(self) -> bool: ...
    def __len__(self) -> int: ...
    def encode(self, text: str, special: bool = True) -> list[int]: ...
    def name_token(self, token: int) -> str | None: ...
    def chat(self, messages: list[dict[str, Any]], **variables: Any) -> list[int]: ...
    def decode(self, ids: Any, special: bool = False) -> str: ...


class Echo(NamedTuple):
    """A prompt as text.

    Attributes:
      text: as it was given; of token ids, what they say, special ones included.
      offsets: where the text of each token begins in it, in characters.
    """

    text: str
    offsets: list[int]


def echo_prompt(tokenizer: Tokens | None, ids: list[int], text: str | None) -> Echo:
    """Find the text of a prompt and the places of its tokens.

    Args:
      ids: all of its tokens.
      text: from which they were encoded; None if they were given.
    """
    if tokenizer is None:
        return Echo("", [0] * len(ids))
    decode = functools.partial(tokenizer.decode, special=True)
    if text is None:
        return Echo(decode(ids), _find_offsets(decode, ids))
    text = replace_surrogates(text)
    # What the tokenizer adds to a text, before or after it, has no place in it.
    own = tokenizer.encode(text, special=False)
    first = _find(own, ids)
    if first is None:
        first, own = 0, ids
    offsets = [min(offset, len(text)) for offset in _find_offsets(decode, own)]
    after = len(ids) - len(own) - first
    return Echo(text, [0] * first + offsets + [len(text)] * after)


def _find_offsets(decode: functools.partial[str], ids: list[int]) -> list[int]:
    """Find where the text of each token begins in the text of all."""
    text, offsets, length = Detokenizer(decode), [], 0
    for id in ids:
        offsets.append(length)
        length += len(text.add([id]))
    return offsets


def _find(part: list[int], whole: list[int]) -> int | None:
    """Find where a list begins in another; None if it is not there."""
    starts = range(len(whole) - len(part) + 1)
    return next((at for at in starts if whole[at : at + len(part)] == part), None)
