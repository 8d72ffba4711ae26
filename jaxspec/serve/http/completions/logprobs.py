"""OpenAI's `logprobs`: how likely each token was, and which others were likely at its place."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from jaxspec.call.text.detokenize import Detokenizer, continue_after
from jaxspec.serve.http.completions.generation import Delta
from jaxspec.serve.http.completions.prompts import Tokens
from jaxspec.serve.requests import TokenLogprob

_LEAST = -9999.0  # what OpenAI writes for a token that cannot occur; JSON has no infinity


class TokenTexts:
    """Texts of single tokens, each decoded once. Special tokens are written out, as elsewhere."""

    def __init__(self, tokenizer: Tokens | None):
        """Make it; without a tokenizer the text of token 5 is `token_id:5`, as in vLLM."""
        self._tokenizer = tokenizer
        self._known: dict[int, str] = {}

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of several tokens without special ones, "" without a tokenizer."""
        return "" if self._tokenizer is None else self._tokenizer.decode(ids)

    def __getitem__(self, id: int) -> str:
        if id not in self._known:
            self._known[id] = self._read(id)
        return self._known[id]

    def _read(self, id: int) -> str:
        if self._tokenizer is None:
            return f"token_id:{id}"
        # Some tokenizers drop the space before the first word of a text, so take a second one.
        decode = functools.partial(self._tokenizer.decode, special=True)
        return continue_after(decode, [id])([id])

    def bytes(self, id: int) -> list[int] | None:
        """Return a token's bytes in UTF-8; None if it ends within a character, or has no text."""
        text = self[id]
        known = self._tokenizer is not None and text and "\N{REPLACEMENT CHARACTER}" not in text
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

    def __init__(self, texts: TokenTexts, prompt: Sequence[int] = (), begin: int = 0):
        """Make it.

        Args:
          prompt: token ids that the answer continues.
          begin: characters of the prompt that the answer begins with.
        """
        self._texts, self._begin = texts, begin
        self._text = Detokenizer(continue_after(texts.decode, prompt))

    def describe(self, delta: Delta) -> dict[str, Any]:
        """Describe the new tokens."""
        offsets = []
        for id in delta.tokens:
            offsets.append(self._begin + self._text.length)
            self._text.add([id])
        return self._join(delta.tokens, delta.logprobs, offsets)

    def describe_prompt(
        self, ids: Sequence[int], found: Sequence[TokenLogprob], offsets: list[int]
    ) -> dict[str, Any]:
        """Describe a prompt; what precedes its first token says nothing of it.

        Args:
          ids: all of its tokens.
          found: of all tokens but the first.
          offsets: where the text of each begins.
        """
        return self._join(ids, [None, *found], list(offsets))

    def _join(
        self, ids: Sequence[int], found: Sequence[TokenLogprob | None], offsets: list[int]
    ) -> dict[str, Any]:
        pairs = list(zip(ids, found, strict=True))
        return {
            "tokens": [self._texts[id] for id in ids],
            "token_logprobs": [None if one is None else max(one.logprob, _LEAST) for one in found],
            "top_logprobs": [
                None if one is None else self._list_likely(id, one) for id, one in pairs
            ],
            "text_offset": offsets,
        }

    def _list_likely(self, id: int, found: TokenLogprob) -> dict[str, float]:
        """List the alternatives by their texts; the token itself is among them, as with OpenAI."""
        likely: dict[str, float] = {}
        for one, logprob in (*found.top, (id, found.logprob)):
            # Of tokens with the same text, such as parts of characters, the likeliest counts.
            likely.setdefault(self._texts[one], max(logprob, _LEAST))
        return likely


def describe_prompt(
    texts: TokenTexts, ids: Sequence[int], found: Sequence[TokenLogprob], count: int
) -> list[dict[str, Any] | None]:
    """Describe the tokens of a prompt as vLLM does: each by the ids of itself and its alternatives.

    Args:
      ids: all of its tokens.
      found: of all tokens but the first.
      count: alternatives of each token.
    """
    described: list[dict[str, Any] | None] = [None]
    for id, one in zip(ids[1:], found, strict=True):
        ranked = [(id, one.logprob, one.rank)]
        ranked += [(other, value, place) for place, (other, value) in enumerate(one.top[:count], 1)]
        entries: dict[str, Any] = {}
        for other, logprob, rank in ranked:
            entry = {"logprob": max(logprob, _LEAST), "rank": rank}
            entries.setdefault(str(other), entry | {"decoded_token": texts[other]})
        described.append(entries)
    return described
