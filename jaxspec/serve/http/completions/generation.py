"""The answers of one HTTP request while they grow: news wait here until the reader takes them."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import AsyncIterator, Iterable
from typing import Protocol

from jaxspec.call.output import TracedRound
from jaxspec.serve.http.errors import ApiError
from jaxspec.serve.http.metrics import Metrics
from jaxspec.serve.requests import TokenLogprob, Update

# Ends of a choice that fail the whole answer: status, message and code of the error.
_FAILURES = {
    "deadline": (504, "The request took longer than this server allows.", "timeout"),
    "error": (500, "The engine gave this request up.", "engine_error"),
    "abort": (500, "The engine gave this request up.", "engine_error"),
}

# Draft trees are pictures: those that a slow reader left behind are dropped.
MOST_TREES = 16


class _Driver(Protocol):
    def cancel(self, ids: Iterable[int]) -> None: ...


@dataclasses.dataclass
class Delta:
    """News of one choice; what arrives while the reader is busy is merged.

    Attributes:
      text: new text, "" without a tokenizer.
      tokens, drafted: new token ids, and whether each was an accepted draft token.
      rounds: rounds that they come from.
      drafts, draft_tokens: drafts that these verified, and the tokens of those.
      trees: rounds to draw, each with the tokens of the choice before it.
      logprobs: of the tokens, if the request asks for them.
      prompt_logprobs: of the prompt's tokens but the first, if they are new.
      finish: why the choice ended, `stop` or `length`; None while it runs, and if it failed.
    """

    index: int
    text: str = ""
    tokens: list[int] = dataclasses.field(default_factory=list)
    drafted: list[bool] = dataclasses.field(default_factory=list)
    rounds: int = 0
    drafts: int = 0
    draft_tokens: int = 0
    trees: list[tuple[int, TracedRound]] = dataclasses.field(default_factory=list)
    finish: str | None = None
    logprobs: list[TokenLogprob] = dataclasses.field(default_factory=list)
    prompt_logprobs: tuple[TokenLogprob, ...] | None = None

    def merge(self, update: Update, before: int) -> None:
        """Add an update, which `before` tokens of the choice precede."""
        self.text += update.text or ""
        # Plain Python values, which can be written as JSON.
        self.tokens += map(int, update.tokens)
        self.drafted += map(bool, update.drafted)
        self.rounds += int(update.rounds)
        self.drafts += int(update.drafts)
        self.draft_tokens += int(update.draft_tokens)
        self.logprobs += update.logprobs
        if update.prompt_logprobs is not None:
            self.prompt_logprobs = update.prompt_logprobs
        if update.tree is not None:
            self.trees = [*self.trees, (before, update.tree)][-MOST_TREES:]
        self.finish = None if update.finish in _FAILURES else update.finish


@dataclasses.dataclass
class _Times:
    """When the first and the last token of a choice came, and how many there are."""

    first: float = 0.0
    last: float = 0.0
    tokens: int = 0


class Generation:
    """The choices of one HTTP request.

    The engine's side never waits: news are merged, so memory is bounded by the token limits.

    Attributes:
      ids: the engine's ids of the choices.
    """

    def __init__(self, driver: _Driver, metrics: Metrics, count: int):
        self.ids: list[int] = []
        self._driver, self._metrics = driver, metrics
        self._news: dict[int, Delta] = {}
        self._arrived = asyncio.Event()
        self._error: ApiError | None = None
        self._open = count
        self._began = time.monotonic()
        self._times = [_Times() for _ in range(count)]

    def put(self, index: int, update: Update) -> None:
        """Take an update of choice `index`."""
        times = self._times[index]
        self._news.setdefault(index, Delta(index)).merge(update, times.tokens)
        self._observe(times, update)
        if update.finish in _FAILURES:
            self.fail(ApiError(*_FAILURES[update.finish]))
        self._arrived.set()

    def fail(self, error: ApiError) -> None:
        """End with an error, after the news that have arrived."""
        self._error = self._error or error
        self._arrived.set()

    def close(self) -> None:
        """Say that nobody reads on; what still runs is cancelled, and its slots become free."""
        self._driver.cancel(self.ids)

    async def __aiter__(self) -> AsyncIterator[list[Delta]]:
        """Yield the news, until every choice has ended.

        Raises:
          ApiError: the generation failed.
        """
        while self._open:
            await self._arrived.wait()
            self._arrived.clear()
            # Together: news that come while the reader is busy precede an error that comes then.
            error, news, self._news = self._error, list(self._news.values()), {}
            self._open -= sum(delta.finish is not None for delta in news)
            if news:
                yield news
            if error is not None:
                raise error

    def _observe(self, times: _Times, update: Update) -> None:
        now = time.monotonic()
        if update.tokens and not times.tokens:
            times.first = now
            self._metrics.first_token.observe(now - self._began)
        elif update.tokens:
            self._metrics.inter_token.observe(now - times.last)
        if update.tokens:
            times.last, times.tokens = now, times.tokens + len(update.tokens)
        self._metrics.generated.inc(len(update.tokens))
        if update.finish is not None:
            self._metrics.count_end(update.finish)
            self._metrics.total.observe(now - self._began)
            if times.tokens > 1:
                self._metrics.per_token.observe((times.last - times.first) / (times.tokens - 1))
