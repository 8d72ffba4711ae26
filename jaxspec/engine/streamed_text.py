"""The text of a sequence while its tokens arrive: pieces that no later token changes."""

from __future__ import annotations

from typing import Any

from jaxspec.engine.detokenize import Detokenizer
from jaxspec.engine.stops import safe_length


class StreamedText:
    """The text of a stream, with what may still change held back.

    Attributes:
      stopped: whether a stop string is complete.
    """

    def __init__(self, tokenizer: Any, stops: tuple[str, ...]):
        self._stops = stops
        self._shown = 0
        self._all = None if tokenizer is None else Detokenizer(tokenizer.decode)
        self.stopped = False

    def add(self, tokens: list[int]) -> str | None:
        """Add tokens; return text to show, which is empty once a stop string is complete."""
        if self._all is None:
            return None
        added = len(self._all.add(tokens))
        text = self._all.text
        before = len(text) - added
        recent = text[max(0, before - max(map(len, self._stops), default=0)) :]
        self.stopped = self.stopped or any(stop in recent for stop in self._stops)
        ready = self._shown if self.stopped else safe_length(text, self._stops)
        piece = text[self._shown : ready]
        self._shown += len(piece)
        return piece

    def rest(self, piece: str | None, whole: str | None) -> str | None:
        """Return `piece` and what of the `whole` text was held back after it."""
        return None if piece is None or whole is None else piece + whole[self._shown :]
