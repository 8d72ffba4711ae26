"""OpenAI's `logprobs`: how likely each token was, and which others were likely at its place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxspec.engine.detokenize import Decode, Detokenizer, continue_after
from jaxspec.serve.http.generation import Delta
from jaxspec.serve.requests import TokenLogprob

_LEAST = -9999.0  # what OpenAI writes for a token that cannot occur; JSON has no infinity


class TokenTexts:
    """Texts of single tokens, each decoded once.

    Attributes:
      decode: turns token ids into text; the text of all is "" without a tokenizer.
    """

    def __init__(self, decode: Decode | None):
        """Make it; without `decode` the text of token 5 is `token_id:5`, as in vLLM."""
        self.decode: Decode = decode or (lambda ids: "")
        self._readable = decode is not None
        self._known: dict[int, str] = {}

    def __getitem__(self, id: int) -> str:
        if id not in self._known:
            self._known[id] = self._read(id)
        return self._known[id]

    def _read(self, id: int) -> str:
        if not self._readable:
            return f"token_id:{id}"
        # Some tokenizers drop the space before the first word of a text, so take a second one.
        return continue_after(self.decode, [id])([id])

    def bytes(self, id: int) -> list[int] | None:
        """Return a token's bytes in UTF-8; None if it ends within a character, or has no text."""
        text = self[id]
        known = self._readable and text and "\N{REPLACEMENT CHARACTER}" not in text
        return list(text.encode()) if known else None


class ChatLogprobs:
    """Writes the `logprobs` of a choice of /v1/chat/completions."""

    def __init__(self, texts: TokenTexts):
        self._texts = texts

    def describe(self, delta: Delta) -> dict[str, Any]:
        """Describe the new tokens."""
        entries = zip(delta.tokens, delta.logprobs, strict=True)
        return {"content": [self._token(*entry) for entry in entries], "refusal": None}

    def _token(self, id: int, found: TokenLogprob) -> dict[str, Any]:
        top = [self._entry(*one) for one in found.top]
        return self._entry(id, found.logprob) | {"top_logprobs": top}

    def _entry(self, id: int, logprob: float) -> dict[str, Any]:
        return {
            "token": self._texts[id],
            "logprob": max(logprob, _LEAST),
            "bytes": self._texts.bytes(id),
        }


class TextLogprobs:
    """Writes the `logprobs` of a choice of /v1/completions."""

    def __init__(self, texts: TokenTexts, prompt: Sequence[int]):
        self._texts = texts
        self._text = Detokenizer(continue_after(texts.decode, prompt))

    def describe(self, delta: Delta) -> dict[str, Any]:
        """Describe the new tokens; the drawn token is among the alternatives, as with OpenAI."""
        offsets, top = [], []
        for id, found in zip(delta.tokens, delta.logprobs, strict=True):
            offsets.append(self._text.length)
            self._text.add([id])
            likely: dict[str, float] = {}
            for one, logprob in (*found.top, (id, found.logprob)):
                # Of tokens with the same text, such as parts of characters, the likeliest counts.
                likely.setdefault(self._texts[one], max(logprob, _LEAST))
            top.append(likely)
        return {
            "tokens": [self._texts[id] for id in delta.tokens],
            "token_logprobs": [max(one.logprob, _LEAST) for one in delta.logprobs],
            "top_logprobs": top,
            "text_offset": offsets,
        }


def make_logprobs(
    texts: TokenTexts, chat: bool, prompt: Sequence[int] = ()
) -> ChatLogprobs | TextLogprobs:
    """Make what writes the log-probabilities of a choice, the answer to a prompt of token ids."""
    return ChatLogprobs(texts) if chat else TextLogprobs(texts, prompt)
