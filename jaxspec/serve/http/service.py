"""What a running endpoint consists of, and whether it takes requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from jaxspec.serve.engine import Engine
from jaxspec.serve.http.completions.logprobs import TokenTexts
from jaxspec.serve.http.completions.prompts import Tokens
from jaxspec.serve.http.completions.translate import Translator
from jaxspec.serve.http.driver import DEAD, Driver
from jaxspec.serve.http.errors import ApiError
from jaxspec.serve.http.metrics import Metrics
from jaxspec.serve.http.settings import HttpSettings

DRAINING = "This server is shutting down."


class Service:
    """An engine with its thread, its tokenizer and its figures.

    Attributes:
      tokenizer: None if the model has none.
      texts: of single tokens.
      draining: whether no more requests are taken.
      on_end: called on the event loop when the process should exit; `jaxspec.serve.http.server`
        sets it.
    """

    def __init__(self, engine: Engine, tokenizer: Tokens | None, settings: HttpSettings):
        self.settings, self.tokenizer, self.draining = settings, tokenizer, False
        self.texts = TokenTexts(tokenizer)
        self.metrics = Metrics(settings.metrics_prefix)
        self.metrics.add_engine(engine)
        self.translator = Translator(tokenizer, settings.room, settings.request_timeout)
        self.driver = Driver(
            engine,
            self.metrics,
            visit_timeout=settings.visit_timeout,
            on_failure=self._end_after_failure,
        )
        self.on_end: Callable[[], None] = lambda: None

    @property
    def refusal(self) -> ApiError | None:
        """Why requests are not taken now, None if they are."""
        if self.driver.failure is not None:
            return ApiError(503, DEAD, "engine_dead")
        if self.draining:
            return ApiError(503, DRAINING, "shutting_down", retry_after=5)
        if not self.driver.warm:
            return ApiError(503, "The model is warming up.", "warming_up", retry_after=5)
        return None

    async def drain(self) -> None:
        """Take no more requests, let running ones end until the deadline, and end the process."""
        if self.draining:
            return
        self.draining = True
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.settings.drain_timeout
        while self.driver.busy and loop.time() < deadline:
            await asyncio.sleep(0.02)
        self.driver.fail_all(ApiError(503, DRAINING, "shutting_down"))
        self.on_end()

    def _end_after_failure(self) -> None:
        """Leave clients and probes some time to hear of it, then end the process."""
        asyncio.get_running_loop().call_later(self.settings.exit_delay, lambda: self.on_end())
