"""Requests on the host: what each has produced, and where it ends."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from jaxspec.call.text.detokenize import continue_after
from jaxspec.call.text.stops import find_stop
from jaxspec.call.text.streamed_text import StreamedText
from jaxspec.serve.checks import CheckedRequest
from jaxspec.serve.requests import Finish, TokenLogprob, Update


@dataclasses.dataclass
class Task:
    """A request from `submit` to its last update.

    Attributes:
      id: of the request.
      accepted: the checked request.
      submitted: time of `submit`.
      tokenizer: the model's, or None.
      started: time at which it got a slot; None while it waits.
      fed: tokens of its prompt that are in the slot's caches; -1 before the first chunk.
      fed_from: tokens of its prompt that were in the caches before the first chunk.
      tokens: generated so far.
      reader: number of the drafter that reads its tokens, so that it can draft for them, from 1; 0:
        none.
      unread: how many of the last tokens the drafter may not have read yet; what it has not read
        when the request ends, it never will.
      outdated: whether some of what the drafter read was read by weights that have been replaced.
      prompt_logprobs: of the tokens of its prompt that were fed; None if nobody waits for them.
    """

    id: int
    accepted: CheckedRequest
    submitted: float
    tokenizer: Any
    started: float | None = None
    fed: int = -1
    fed_from: int = 0
    tokens: list[int] = dataclasses.field(default_factory=list)
    reader: int = 1
    unread: int = 0
    outdated: bool = False
    prompt_logprobs: list[TokenLogprob] | None = None

    def __post_init__(self) -> None:
        given = self.accepted
        if given.request.prompt_logprobs is not None:
            self.prompt_logprobs = []
        self._text = StreamedText(self.tokenizer, given.stop_strings, given.prompt)
        if self.tokenizer is not None:
            self._decode = continue_after(self.tokenizer.decode, given.prompt)

    @property
    def decodes(self) -> bool:
        """Whether the whole prompt is in the slot."""
        return self.fed == len(self.accepted.prompt) - 1

    @property
    def cached(self) -> list[int]:
        """The tokens whose rows are in the caches of the target and of the drafter."""
        prompt = self.accepted.prompt
        if not self.decodes:
            return prompt[: max(self.fed, 0)]
        # The last token's rows are made in the next round.
        return [*prompt, *self.tokens][: -1 - self.unread]

    @property
    def cached_by(self) -> int:
        """Number of the drafter whose rows of them can be used again; 0: none."""
        return 0 if self.outdated else self.reader

    def let_go(self) -> None:
        """Go on without a drafter."""
        self.reader = self.unread = 0

    def is_late(self, now: float) -> bool:
        """Whether its deadline has passed."""
        deadline = self.accepted.request.deadline
        return deadline is not None and now - self.submitted >= deadline

    def end_prompt(self) -> Update:
        """Return the update with the log-probabilities of the prompt, all of which was fed.

        It is the last one if the model failed on the prompt, or if no token is asked for.
        """
        assert self.prompt_logprobs is not None, "the request asks for them"
        found, self.prompt_logprobs = tuple(self.prompt_logprobs), None
        if any(math.isnan(one.logprob) for one in found):
            return self.end("error")
        update = Update(self.id, prompt_logprobs=found)
        if self.accepted.request.max_new_tokens:
            return update
        return dataclasses.replace(update, text=self._rest(""), finish="length")

    def add(
        self,
        tokens: list[int],
        drafted: list[bool],
        done: bool,
        broken: bool,
        logprobs: list[TokenLogprob],
    ) -> Update:
        """Add what a visit emitted; return what is new, with the finish if the text has ended.

        Args:
          done: whether a stop id or the limit ended the text.
          broken: whether the model failed on it, after these tokens.
          logprobs: of the tokens, or empty.
        """
        before = len(self.tokens)
        self.tokens += tokens
        piece = self._text.add(tokens)
        finish: Finish | None = None
        if self._text.stopped:
            found = find_stop(self.tokens, self._decode, self.accepted.stop_strings)
            assert found is not None, "the text holds a stop string"
            self.tokens, whole = self.tokens[: found[0]], found[1]
            finish, piece = "stop", self._text.rest(piece, whole)
        elif broken:
            finish, piece = "error", self._rest(piece)
        elif done:
            finish, piece = self._why_done(), self._rest(piece)
        new = tuple(self.tokens[before:])
        flags, ranks = tuple(drafted[: len(new)]), tuple(logprobs[: len(new)])
        return Update(self.id, new, flags, piece, finish, logprobs=ranks)

    def end(self, finish: Finish) -> Update:
        """Return the last update of a request that ends for another reason than its text."""
        return Update(self.id, text=self._rest(""), finish=finish)

    def _rest(self, piece: str | None) -> str | None:
        if self.tokenizer is None:
            return None
        return self._text.rest(piece, self._decode(self.tokens) if self.tokens else "")

    def _why_done(self) -> Finish:
        return "stop" if self.tokens[-1] in self.accepted.stop_ids else "length"
