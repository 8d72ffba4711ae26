"""The text of a sequence while its tokens arrive: pieces that no later token changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxspec.call.text.detokenize import Detokenizer, continue_after
from jaxspec.call.text.stops import Stops


class StreamedText:
    """The text of a stream, with what may still change held back.

    Attributes:
      stopped: whether a stop string is complete.
    """

    def __init__(self, tokenizer: Any, stops: Stops, prompt: Sequence[int] = ()):
        """Make it.

        Args:
          tokenizer: the model's, or None.
          stops: strings that end the text.
          prompt: token ids that the text continues.
        """
        self._stops, self._early = stops, stops.least
        self._held, self._shown = "", 0
        self._all = None
        if tokenizer is not None:
            self._all = Detokenizer(stops.mark(continue_after(tokenizer.decode, prompt)))
        self.stopped = False

    def add(self, tokens: list[int]) -> str | None:
        """Add tokens; return text to show, which is empty once a stop string is complete."""
        if self._all is None:
            return None
        early, tokens = tokens[: self._early], tokens[self._early :]
        self._early -= len(early)
        self._held += self._all.add(early) if early else ""
        # A stop string begins in what is held back: nothing else could become one.
        known = len(self._held)
        self._held += self._all.add(tokens) if tokens else ""
        self.stopped = self.stopped or self._stops.find(self._held, known) is not None
        ready = 0 if self.stopped else self._stops.safe_length(self._held)
        piece, self._held = self._stops.clean(self._held[:ready]), self._held[ready:]
        self._shown += len(piece)
        return piece

    def rest(self, piece: str | None, whole: str | None) -> str | None:
        """Return `piece` and what of the `whole` text was held back after it."""
        return None if piece is None or whole is None else piece + whole[self._shown :]
