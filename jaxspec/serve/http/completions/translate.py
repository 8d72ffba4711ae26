"""Turn validated parameters into requests of the engine: templates, token ids, defaults."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

from jaxspec.io.text.chat_template import RESERVED
from jaxspec.io.text.messages import read_messages
from jaxspec.serve.http.completions.parameters import Body, ChatParameters, TextParameters
from jaxspec.serve.http.completions.prompts import Echo, Tokens, echo_prompt
from jaxspec.serve.http.errors import ApiError
from jaxspec.serve.requests import ServeRequest

MOST_WAITING = 64  # prompts that wait to be encoded; a flood of long ones must not fill the memory
DEFAULT_TEXT_TOKENS = 16  # of /v1/completions, as OpenAI's
# Characters of a token; the longest of published vocabularies are runs of about 128 spaces.
LONGEST_TOKEN = 256

T = TypeVar("T")


class Prepared(NamedTuple):
    """Requests of one HTTP request, in the order of its choices.

    Attributes:
      requests: the n samples of the first prompt, then those of the second, …
      prompts: token ids of each prompt.
      echoes: what the answer repeats of each prompt, if it does.
    """

    requests: list[ServeRequest]
    prompts: list[list[int]]
    echoes: list[Echo] | None = None

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts; a prompt counts once, however many samples it has."""
        return sum(map(len, self.prompts))


class Translator:
    """Makes engine requests.

    Tokenizers are not safe to share between threads, and a long prompt would stop the event loop:
    all prompts are encoded by one other thread.
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
        asked = parameters.max_completion_tokens
        if asked is not None and parameters.max_tokens not in (None, asked):
            message = "max_tokens and max_completion_tokens differ: give one of them."
            raise ApiError(400, message, "invalid_value", "max_tokens")
        ids = await self.encode_chat(parameters.messages, parameters.variables)
        return self._prepare(parameters, [ids], asked or parameters.max_tokens)

    async def prepare_text(self, parameters: TextParameters) -> Prepared:
        """Encode the prompts."""
        given = parameters.prompts
        prompts = [await self.encode(one) if isinstance(one, str) else one for one in given]
        limit = parameters.max_tokens
        limit = DEFAULT_TEXT_TOKENS if limit is None else limit
        prepared = self._prepare(parameters, prompts, limit)
        if not parameters.echo:
            return prepared
        echoes = []
        for text, ids in zip(given, prompts, strict=True):
            args = self._tokenizer, ids, text if isinstance(text, str) else None
            echoes.append(await self._run(echo_prompt, *args, param="prompt"))
        return prepared._replace(echoes=echoes)

    async def encode(self, text: str, special: bool = True) -> list[int]:
        """Encode a text.

        Args:
          special: with the special tokens that the model expects before it.

        Raises:
          ApiError: there is no tokenizer, or the text is far too long.
        """
        tokenizer = self.require_tokenizer("prompt")
        self._check_length(len(text), "prompt")
        return await self._run(tokenizer.encode, text, special, param="prompt")

    async def encode_chat(
        self, messages: list[dict[str, Any]], variables: dict[str, Any], answer: bool = True
    ) -> list[int]:
        """Put messages into the model's template.

        Args:
          variables: of the template.
          answer: end with what begins an answer.

        Raises:
          ApiError: there is no template, or it cannot read the messages.
        """
        tokenizer = self._tokenizer
        if tokenizer is None or not tokenizer.has_chat_template:
            message = "This model has no chat template: use /v1/completions."
            raise ApiError(400, message, "no_chat_template", "messages")
        if wrong := RESERVED & set(variables):
            message = f"chat_template_kwargs must not set {', '.join(sorted(wrong))}."
            raise ApiError(400, message, "invalid_value", "chat_template_kwargs")
        given = _read(messages)
        self._check_length(sum(map(_count_characters, given)), "messages")
        options = variables if answer else variables | {"add_generation_prompt": False}
        return await self._run(lambda: tokenizer.chat(given, **options), param="messages")

    async def decode(self, ids: list[int]) -> str:
        """Decode token ids, special ones included.

        Raises:
          ApiError: there is no tokenizer, or it has no such token.
        """
        tokenizer = self.require_tokenizer("tokens")
        if wrong := [id for id in ids if id >= len(tokenizer)]:
            message = f"Token id {wrong[0]} is none of the {len(tokenizer)} of this tokenizer."
            raise ApiError(400, message, "invalid_value", "tokens")
        return await self._run(tokenizer.decode, ids, True, param="tokens")

    def require_tokenizer(self, param: str) -> Tokens:
        """Return the model's tokenizer.

        Raises:
          ApiError: it has none.
        """
        if self._tokenizer is None:
            message = "This model has no tokenizer: give and take token ids."
            raise ApiError(400, message, "no_tokenizer", param)
        return self._tokenizer

    def _check_length(self, characters: int, param: str) -> None:
        """Refuse a text that is far too long before others wait seconds for its tokens."""
        if characters > self._room * LONGEST_TOKEN:
            message = (
                f"{characters} characters are more than the {self._room} tokens that this server "
                "holds: shorten the prompt."
            )
            raise ApiError(400, message, "context_length_exceeded", param)

    async def _run(self, work: Callable[..., T], *args: Any, param: str) -> T:
        """Work in the tokenizer's thread; what it cannot read is the client's mistake."""
        if self._waiting >= MOST_WAITING:
            message = "Too many prompts wait to be encoded. Try again later."
            raise ApiError(429, message, "queue_full", retry_after=1)
        loop = asyncio.get_running_loop()
        self._waiting += 1
        try:
            return await loop.run_in_executor(self._thread, work, *args)
        except Exception as error:  # templates raise anything; their messages are for their users
            reason = (str(error).strip().splitlines() or [""])[0] or type(error).__name__
            message = f"The prompt cannot be encoded: {reason}"
            raise ApiError(400, message, "invalid_value", param) from None
        finally:
            self._waiting -= 1

    def _prepare(self, parameters: Body, prompts: list[list[int]], limit: int | None) -> Prepared:
        seed = parameters.seed if parameters.seed is not None else secrets.randbits(62)
        requests = [
            self._request(parameters, tuple(ids), limit, seed, sequence)
            for ids in prompts
            for sequence in range(parameters.n)
        ]
        return Prepared(requests, prompts)

    def _request(
        self, given: Body, ids: tuple[int, ...], limit: int | None, seed: int, sequence: int
    ) -> ServeRequest:
        left, least = self._room - len(ids), 1 if limit is None else limit
        if left < least:
            message = (
                f"This server holds {self._room} tokens of a prompt and its answer. You asked for "
                f"{len(ids)} in the prompt and {least} in the answer: shorten one of them."
            )
            raise ApiError(400, message, "context_length_exceeded", "max_tokens" if limit else None)
        # The samples of a prompt share what the first one reads of it.
        reads = sequence == 0 or limit == 0
        return ServeRequest(
            tokens=ids,
            max_new_tokens=left if limit is None else limit,
            temperature=given.temperature,
            top_k=given.top_k if given.top_k > 0 else None,
            top_p=given.top_p if given.top_p < 1 else None,
            min_p=given.min_p or None,
            presence_penalty=given.presence_penalty,
            frequency_penalty=given.frequency_penalty,
            repetition_penalty=given.repetition_penalty,
            seed=seed,
            sequence=sequence,
            stop=(*given.stop, *given.stop_token_ids),
            ignore_eos=given.ignore_eos,
            min_tokens=given.min_tokens,
            drafter=given.drafter,
            adapt=given.adapt,
            deadline=self._deadline,
            trace=given.trace,
            logit_bias=tuple((int(id), bias) for id, bias in given.logit_bias.items()),
            logprobs=given.alternatives,
            prompt_logprobs=given.prompt_alternatives if reads else None,
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
