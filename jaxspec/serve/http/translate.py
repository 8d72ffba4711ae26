"""Turn validated parameters into requests of the engine: templates, token ids, defaults."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol

from jaxspec.io.messages import read_messages
from jaxspec.serve.http.errors import ApiError
from jaxspec.serve.http.parameters import Body, ChatParameters, TextParameters
from jaxspec.serve.requests import ServeRequest

MOST_WAITING = 64  # prompts that wait to be encoded; a flood of long ones must not fill the memory
DEFAULT_TEXT_TOKENS = 16  # of /v1/completions, as OpenAI's
# Characters of a token; the longest of published vocabularies are runs of about 128 spaces.
LONGEST_TOKEN = 256

# What the server itself passes to the template; `chat_template` would replace the model's own.
_RESERVED = {
    "add_generation_prompt",
    "chat_template",
    "continue_final_message",
    "conversation",
    "documents",
    "max_length",
    "messages",
    "padding",
    "return_assistant_tokens_mask",
    "return_dict",
    "return_tensors",
    "sanitize_control_tokens",
    "tokenize",
    "tokenizer_kwargs",
    "tools",
    "truncation",
}


class Tokens(Protocol):
    """What the endpoint needs of a tokenizer, see `jaxspec.io.tokenizer.Tokenizer`."""

    @property
    def has_chat_template(self) -> bool: ...
    def encode(self, text: str) -> list[int]: ...
    def chat(self, messages: list[dict[str, Any]], **variables: Any) -> list[int]: ...
    def decode(self, ids: Any) -> str: ...


class Prepared(NamedTuple):
    """Requests of one HTTP request, in the order of its choices.

    Attributes:
      requests: the n samples of the first prompt, then those of the second, …
      prompt_tokens: of all prompts; a prompt counts once, however many samples it has.
    """

    requests: list[ServeRequest]
    prompt_tokens: int


class Translator:
    """Makes engine requests.

    Tokenizers are not safe to share between threads, and a long prompt would stop the event loop: all
    prompts are encoded by one other thread.
    """

    def __init__(self, tokenizer: Tokens | None, room: int, deadline: float | None):
        """Make it.

        Args:
          room: most tokens of a prompt together with its answer.
          deadline: seconds that a request may take; None for no limit.
        """
        self._tokenizer, self._room, self._deadline = tokenizer, room, deadline
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tokenizer")
        self._waiting = 0

    async def prepare_chat(self, parameters: ChatParameters) -> Prepared:
        """Put the messages into the model's template."""
        tokenizer, template = self._tokenizer, parameters.chat_template_kwargs
        if tokenizer is None or not tokenizer.has_chat_template:
            message = "This model has no chat template: use /v1/completions."
            raise ApiError(400, message, "no_chat_template", "messages")
        if wrong := _RESERVED & set(template):
            message = f"chat_template_kwargs must not set {', '.join(sorted(wrong))}."
            raise ApiError(400, message, "invalid_value", "chat_template_kwargs")
        asked = parameters.max_completion_tokens
        if asked is not None and parameters.max_tokens not in (None, asked):
            message = "max_tokens and max_completion_tokens differ: give one of them."
            raise ApiError(400, message, "invalid_value", "max_tokens")
        messages = _read(parameters.messages)
        self._check_length(sum(map(_count_characters, messages)), "messages")
        ids = await self._run(lambda: tokenizer.chat(messages, **template), "messages")
        return self._requests(parameters, [ids], asked or parameters.max_tokens)

    async def prepare_text(self, parameters: TextParameters) -> Prepared:
        """Encode the prompts."""
        prompts = [
            await self._encode(one) if isinstance(one, str) else one for one in parameters.prompts
        ]
        return self._requests(parameters, prompts, parameters.max_tokens or DEFAULT_TEXT_TOKENS)

    async def _encode(self, text: str) -> list[int]:
        tokenizer = self._tokenizer
        if tokenizer is None:
            message = "This model has no tokenizer: give the prompt as token ids."
            raise ApiError(400, message, "no_tokenizer", "prompt")
        self._check_length(len(text), "prompt")
        return await self._run(lambda: tokenizer.encode(text), "prompt")

    def _check_length(self, characters: int, param: str) -> None:
        """Refuse a text that is far too long before others wait seconds for its tokens."""
        if characters > self._room * LONGEST_TOKEN:
            message = (
                f"{characters} characters are more than the {self._room} tokens that this server "
                "holds: shorten the prompt."
            )
            raise ApiError(400, message, "context_length_exceeded", param)

    async def _run(self, encode: Callable[[], list[int]], param: str) -> list[int]:
        """Encode in the tokenizer's thread; what it cannot read is the client's mistake."""
        if self._waiting >= MOST_WAITING:
            message = "Too many prompts wait to be encoded. Try again later."
            raise ApiError(429, message, "queue_full", retry_after=1)
        loop = asyncio.get_running_loop()
        self._waiting += 1
        try:
            return await loop.run_in_executor(self._thread, encode)
        except Exception as error:  # templates raise anything; their messages are for their users
            reason = (str(error).strip().splitlines() or [""])[0] or type(error).__name__
            message = f"The prompt cannot be encoded: {reason}"
            raise ApiError(400, message, "invalid_value", param) from None
        finally:
            self._waiting -= 1

    def _requests(self, parameters: Body, prompts: list[list[int]], limit: int | None) -> Prepared:
        seed = parameters.seed if parameters.seed is not None else secrets.randbits(62)
        requests = [
            self._request(parameters, tuple(ids), limit, seed, sequence)
            for ids in prompts
            for sequence in range(parameters.n)
        ]
        return Prepared(requests, sum(map(len, prompts)))

    def _request(
        self, given: Body, ids: tuple[int, ...], limit: int | None, seed: int, sequence: int
    ) -> ServeRequest:
        left = self._room - len(ids)
        if left < (limit or 1):
            message = (
                f"This server holds {self._room} tokens of a prompt and its answer. You asked for "
                f"{len(ids)} in the prompt and {limit or 1} in the answer: shorten one of them."
            )
            raise ApiError(400, message, "context_length_exceeded", "max_tokens" if limit else None)
        return ServeRequest(
            tokens=ids,
            max_new_tokens=limit or left,
            temperature=given.temperature,
            top_k=given.top_k if given.top_k > 0 else None,
            top_p=given.top_p if given.top_p < 1 else None,
            min_p=given.min_p or None,
            seed=seed,
            sequence=sequence,
            stop=(*given.stop, *given.stop_token_ids),
            ignore_eos=given.ignore_eos,
            min_tokens=given.min_tokens,
            method=given.method,
            deadline=self._deadline,
            trace=given.trace,
            logit_bias=tuple((int(id), bias) for id, bias in given.logit_bias.items()),
            logprobs=given.alternatives,
        )


def _read(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Read OpenAI's messages."""
    try:
        return read_messages(messages, "messages", "body")
    except ValueError as error:
        raise ApiError(400, f"{error}.", "invalid_value", "messages") from None


def _count_characters(message: dict[str, Any]) -> int:
    """Count the characters of a message and its tool calls."""
    calls = message.get("tool_calls") or message.get("function_call") or ""
    return len(message["content"]) + len(str(calls))
