"""Turn a growing list of tokens into text, in time linear in its length."""

from __future__ import annotations

from collections.abc import Callable, Sequence

_UNFINISHED = "\N{REPLACEMENT CHARACTER}"


class Detokenizer:
    """The text of the tokens added so far.

    Only a few of the last tokens are decoded again: from the last place where the text was complete,
    since a tokenizer may treat the first token of what it decodes in a special way.

    Attributes:
      text: the text, without a last character of which bytes are still missing.
    """

    def __init__(self, decode: Callable[[list[int]], str]):
        self._decode = decode
        self._recent: list[int] = []
        self._known = 0  # tokens of `_recent` whose text is in `text`
        self.text = ""

    def add(self, tokens: Sequence[int]) -> str:
        """Add tokens; return the text that they complete."""
        self._recent += tokens
        return self._take(whole=False)

    def finish(self) -> str:
        """Return what is left: the bytes of a character that stays incomplete."""
        return self._take(whole=True)

    def _take(self, whole: bool) -> str:
        before = self._decode(self._recent[: self._known])
        after = self._decode(self._recent)
        if len(after) <= len(before) or (after.endswith(_UNFINISHED) and not whole):
            return ""
        added = after[len(before) :]
        self.text += added
        self._recent, self._known = self._recent[self._known :], 0
        self._known = len(self._recent)
        return added
