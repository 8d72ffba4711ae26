"""Turn a growing list of tokens into text, in time linear in its length."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Decode = Callable[[Sequence[int]], str]

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
# Tokens that are decoded again. The bytes of an unfinished character are in the last three with
# text.
_LEAST, _MOST = 4, 12


class Detokenizer:
    """The text of the tokens added so far.

    Only a few of the last tokens are decoded again, since a tokenizer may treat the first token of
    what it decodes in a special way. Tokens without text, such as the end of a text, are not among
    them, however many there are.

    Attributes:
      length: characters of `text`.
    """

    def __init__(self, decode: Decode):
        """Make it.

        Args:
          decode: token ids to text. A character that lacks bytes is one U+FFFD at the end.
        """
        self._decode = decode
        self._window: list[int] = []  # of tokens with text
        self._known = 0  # characters of the window's text that are in `text`
        self._silent: dict[int, bool] = {}
        self._pieces: list[str] = []
        self.length = 0

    @property
    def text(self) -> str:
        """The text, without a last character of which bytes may still be missing."""
        self._pieces = ["".join(self._pieces)]
        return self._pieces[0]

    def add(self, tokens: Sequence[int]) -> str:
        """Add tokens; return the text that they complete."""
        self._window += tokens
        return self._take(settle)

    def finish(self) -> str:
        """Return what is left: a character that stays incomplete."""
        return self._take(lambda text: text)

    def _take(self, ready: Callable[[str], str]) -> str:
        text = ready(self._decode(self._window))
        added = text[self._known :]
        self._pieces.append(added)
        self.length += len(added)
        self._known = len(text)
        if len(self._window) > _MOST:
            self._window = [one for one in self._window if not self._is_silent(one)][-_LEAST:]
            self._known = len(ready(self._decode(self._window)))
        return added

    def _is_silent(self, token: int) -> bool:
        """Whether a token has no text at any place. A text's first space has none at its first."""
        if token not in self._silent:
            self._silent[token] = not self._decode([token, token])
        return self._silent[token]


def settle(text: str) -> str:
    """Leave out a last character that later tokens may change: one that may lack bytes."""
    return text.removesuffix(_REPLACEMENT)


def continue_after(decode: Decode, prompt: Sequence[int]) -> Decode:
    """Return a function that decodes what follows a prompt.

    Tokenizers made of SentencePiece's leave out a text's first space, which a continuation needs.
    """
    context = _find_context(decode, prompt)
    if not context:
        return decode
    known = len(decode(context))
    return lambda tokens: decode([*context, *tokens])[known:]


def _find_context(decode: Decode, prompt: Sequence[int]) -> list[int]:
    """Find the last tokens of a prompt that have text, up to the end of a character."""
    texts: dict[int, str] = {}
    found: list[int] = []
    for token in map(int, reversed(prompt)):
        if token not in texts:
            texts[token] = decode([token])
        if texts[token]:
            found.insert(0, token)
        if len(found) == 2 * _LEAST:
            break
    while found and decode(found).endswith(_REPLACEMENT):
        found.pop()
    # One token is enough, unless it is a part of a character.
    whole = [token for token in found[-1:] if _REPLACEMENT not in texts[token]]
    return whole or found
