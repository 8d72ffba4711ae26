"""Answer a request for text: at once or as a stream, for chats and for plain prompts."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

from fastapi import Request, Response
from fastapi.responses import JSONResponse

from jaxspec.serve.http.completions.answers import Envelope, Tally, Trace
from jaxspec.serve.http.completions.event_stream import EventStream, run_until_gone
from jaxspec.serve.http.completions.generation import Delta, Generation
from jaxspec.serve.http.completions.logprobs import ChatLogprobs, TextLogprobs, describe_prompt
from jaxspec.serve.http.completions.parameters import Body, ChatParameters
from jaxspec.serve.http.completions.translate import Prepared
from jaxspec.serve.http.errors import ApiError
from jaxspec.serve.http.guard import REQUEST_ID
from jaxspec.serve.http.service import Service
from jaxspec.serve.requests import TokenLogprob


async def complete(service: Service, request: Request, given: Body) -> Response:
    """Answer a request.

    Raises:
      ApiError: it is refused.
    """
    if (refusal := service.refusal) is not None:
        raise refusal
    check_model(service, given.model)
    if given.choices > service.settings.most_choices:  # before each of them costs something
        message = f"At most {service.settings.most_choices} choices fit into one request."
        raise ApiError(400, message, "invalid_value", "n" if given.n > 1 else "prompt")
    envelope = _envelope(service, request, chat=isinstance(given, ChatParameters))
    if isinstance(given, ChatParameters):
        prepared = await service.translator.prepare_chat(given)
    else:
        prepared = await service.translator.prepare_text(given)
    if (refusal := service.refusal) is not None:  # while the prompt was encoded
        raise refusal
    generation = service.driver.submit(prepared.requests)
    service.metrics.prompt.inc(prepared.prompt_tokens)
    answer = _Answer(service, envelope, given, generation, prepared)
    if given.stream:
        timeout = service.settings.send_timeout
        return EventStream(answer.stream(), send_timeout=timeout, close=generation.close)
    try:
        whole = await run_until_gone(answer.collect(), request.receive)
    finally:
        generation.close()
    return Response(status_code=499) if whole is None else JSONResponse(whole)


def check_model(service: Service, name: str | None) -> None:
    """Refuse another model's name.

    Raises:
      ApiError: with status 404.
    """
    if name not in (None, service.settings.model):
        message = f"There is no model of this name here: use '{service.settings.model}'."
        raise ApiError(404, message, "model_not_found", "model")


def _envelope(service: Service, request: Request, *, chat: bool) -> Envelope:
    id = request.scope["state"][REQUEST_ID]
    return Envelope(f"{'chatcmpl' if chat else 'cmpl'}-{id}", service.settings.model, chat)


class _Answer:
    """The answer to one HTTP request."""

    def __init__(
        self,
        service: Service,
        envelope: Envelope,
        given: Body,
        generation: Generation,
        prepared: Prepared,
    ):
        self._envelope, self._generation, self._given = envelope, generation, given
        self._tally, self._count = Tally(prepared.prompt_tokens), len(generation.ids)
        self._prepared, self._texts = prepared, service.texts
        wanted = given.stream_options
        self._usage = wanted is not None and wanted.include_usage
        self._usage_so_far = wanted is not None and wanted.continuous_usage_stats
        self._traces, self._logprobs = None, None
        if given.trace and service.tokenizer is not None:
            decode, requests = service.tokenizer.decode, prepared.requests
            self._traces = [Trace(decode, one.tokens) for one in requests]
        if given.alternatives is not None:
            self._logprobs = [self._make_logprobs(index) for index in range(self._count)]
        # Log-probabilities of prompts by their numbers, and the choices that have begun.
        self._read: dict[int, tuple[TokenLogprob, ...]] = {}
        self._begun: set[int] = set()

    async def collect(self) -> dict[str, Any]:
        """Wait for all choices and return the whole answer."""
        texts, finish = [""] * self._count, [""] * self._count
        extras: list[dict[str, Any]] = [{} for _ in texts]
        async for news in self._generation:
            for delta in news:
                text, extra = self._take(delta)
                texts[delta.index] += text
                finish[delta.index] = delta.finish or ""
                _extend(extras[delta.index], extra)
        choices = [
            self._envelope.choice(index, text, finish[index]) | extras[index]
            for index, text in enumerate(texts)
        ]
        whole = self._envelope.wrap(choices, chunk=False)
        self._add_prompt_logprobs(whole)
        return whole | {"usage": self._tally.usage(), "metrics": self._tally.metrics()}

    async def stream(self) -> AsyncIterator[bytes]:
        """Yield the events of a stream; an error after the first is an event, and the last."""
        if self._envelope.chat:
            for index in range(self._count):
                yield self._chunk([self._envelope.part(index, "", None, first=True)])
        try:
            async for news in self._generation:
                for delta in news:
                    text, extra = self._take(delta)
                    if text or delta.finish or any(extra.values()):
                        part = self._envelope.part(delta.index, text, delta.finish, first=False)
                        yield self._chunk([part | extra])
        except ApiError as error:
            yield _event(error.body())
            return
        if self._usage:
            yield self._chunk([], usage=self._tally.usage(), metrics=self._tally.metrics())
        yield b"data: [DONE]\n\n"

    def _take(self, delta: Delta) -> tuple[str, dict[str, Any]]:
        """Return the text that is new in a choice, and what it says of the new tokens.

        The first news of a choice begin with its prompt, if the client asked.
        """
        self._tally.add(delta)
        number = delta.index // self._given.n
        if delta.prompt_logprobs is not None:
            self._read[number] = delta.prompt_logprobs
        text, extra, echoes = delta.text, {}, self._prepared.echoes
        if echoes is not None and delta.index not in self._begun:
            self._begun.add(delta.index)
            text = echoes[number].text + text
            if self._logprobs is not None:
                # The engine reads a prompt before it generates for any of its samples.
                of_prompt = self._prepared.prompts[number], self._read[number]
                writer = self._logprobs[delta.index]
                extra["logprobs"] = writer.describe_prompt(*of_prompt, echoes[number].offsets)
        _extend(extra, self._extra(delta))
        return text, extra

    def _make_logprobs(self, index: int) -> ChatLogprobs | TextLogprobs:
        if self._envelope.chat:
            return ChatLogprobs(self._texts)
        number, echoes = index // self._given.n, self._prepared.echoes
        begin = 0 if echoes is None else len(echoes[number].text)
        return TextLogprobs(self._texts, self._prepared.prompts[number], begin)

    def _add_prompt_logprobs(self, whole: dict[str, Any]) -> None:
        """Add what vLLM's `prompt_logprobs` asks for: to a chat, or else to each choice."""
        if (count := self._given.prompt_logprobs) is None:
            return
        for index, choice in enumerate(whole["choices"]):
            number = index // self._given.n
            of_prompt = self._prepared.prompts[number], self._read[number]
            place = whole if self._envelope.chat else choice
            place["prompt_logprobs"] = describe_prompt(self._texts, *of_prompt, count)

    def _extra(self, delta: Delta) -> dict[str, Any]:
        """Return what a choice says of its new tokens, if the client asked."""
        extra: dict[str, Any] = {}
        if self._given.return_token_ids:
            extra["token_ids"] = list(delta.tokens)
        traces, logprobs = self._traces, self._logprobs
        if traces is not None:
            extra["trace"] = traces[delta.index].describe(delta)
        if logprobs is not None and delta.tokens:
            extra["logprobs"] = logprobs[delta.index].describe(delta)
        return extra

    def _chunk(self, choices: list[dict[str, Any]], **more: Any) -> bytes:
        usage: dict[str, Any] = {"usage": None} if self._usage else {}
        if self._usage_so_far:
            usage = {"usage": self._tally.usage()}
        return _event(self._envelope.wrap(choices, chunk=True) | usage | more)


def _extend(whole: dict[str, Any], news: dict[str, Any]) -> None:
    """Add the lists in `news`, which `whole` may keep, to those of the same names in it."""
    for key, value in news.items():
        if isinstance(value, dict):
            _extend(whole.setdefault(key, {}), value)
        elif value is None:
            whole[key] = None
        else:
            whole.setdefault(key, []).extend(value)


def _event(body: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(body, ensure_ascii=False).encode() + b"\n\n"
