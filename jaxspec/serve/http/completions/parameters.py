"""What a request may say. Anything else is refused: a parameter is never ignored."""

from __future__ import annotations

import re
from typing import Annotated, Any, TypeAlias

from pydantic import (
    FailFast,
    Field,
    GetJsonSchemaHandler,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic_core import CoreSchema

from jaxspec.core.sampling.settings import MOST_PENALTY
from jaxspec.serve.bias import BIASES, LARGEST
from jaxspec.serve.http.completions.bodies import (
    BIASED,
    CONDITIONS,
    MOST_STOP_LENGTH,
    MOST_STOPS,
    PROMPT,
    STOPS,
    Closed,
    Messages,
    refuse_alone,
)
from jaxspec.serve.http.completions.unsupported import (
    CALLED,
    UNSUPPORTED,
    asks_for_nothing,
    drop_what_asks_for_nothing,
    refuse,
)
from jaxspec.serve.on_device.logprobs import MOST

MOST_SAMPLES = 128  # OpenAI's limit of n
MOST_CHAT_LOGPROBS, MOST_TEXT_LOGPROBS = 20, 5  # OpenAI's limits of alternatives to a token
MOST_LABELS = 16  # OpenAI's limit of the keys of `metadata`

Ids: TypeAlias = list[int]
_COUNT = {
    "anyOf": [{"type": "integer", "minimum": 0, "maximum": MOST_TEXT_LOGPROBS}, {"const": False}]
}
_Bias = Annotated[float, Field(ge=-LARGEST, le=LARGEST)]


class StreamOptions(Closed):
    """Options of a stream.

    Attributes:
      include_usage: end with a chunk that has the usage.
      continuous_usage_stats: every chunk has the usage so far, as in vLLM.
    """

    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: bool = False

    @field_validator("include_obfuscation")
    @classmethod
    def _refuse_obfuscation(cls, value: bool) -> bool:
        if value:
            raise ValueError("padding against traffic analysis is not supported")
        return value


class Parameters(Closed):
    """Parameters that both endpoints take.

    Attributes:
      min_p, top_k, ignore_eos, min_tokens, stop_token_ids: as in vLLM; top_k of 0 or -1 is no
        limit.
      seed: of sampling; with the same seed and prompt the text is the same under any load. None: a
        seed that no other request has.
      presence_penalty, frequency_penalty, repetition_penalty: as in `jaxspec.decode`, OpenAI's and
        vLLM's.
      logit_bias: what to add to the logits of tokens, by their ids.
      user, safety_identifier, metadata: labels, which are neither used nor kept.
      store: whether OpenAI may keep the answer; nothing is kept here in any case.
      prompt_cache_key: which requests begin alike; the server finds out itself.
      prompt_logprobs: give the log-probability of each token of the prompt, and of so many others
        at its place, as in vLLM.
      return_token_ids: give the ids of the new tokens beside their text.
      drafter: of this request, one of the server's; `ar` decodes without one. The text is the
        same.
      adapt: whether a drafter may learn from it, where one learns.
      trace: say which tokens a drafter proposed, and show the draft trees.
    """

    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=-1)] = 0
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    presence_penalty: Annotated[float, Field(ge=-MOST_PENALTY, le=MOST_PENALTY)] = 0.0
    frequency_penalty: Annotated[float, Field(ge=-MOST_PENALTY, le=MOST_PENALTY)] = 0.0
    repetition_penalty: Annotated[float, Field(gt=0)] = 1.0
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: Annotated[tuple[str, ...], WithJsonSchema(STOPS)] = ()
    stop_token_ids: Annotated[tuple[int, ...], FailFast()] = ()
    logit_bias: Annotated[dict[str, _Bias], WithJsonSchema(BIASED)] = {}
    n: Annotated[int, Field(ge=1, le=MOST_SAMPLES)] = 1
    user: str | None = None
    safety_identifier: str | None = None
    metadata: Annotated[dict[str, str], Field(max_length=MOST_LABELS)] = {}
    store: bool = False
    prompt_cache_key: str | None = None
    prompt_logprobs: Annotated[int, Field(ge=0, le=MOST)] | None = None
    ignore_eos: bool = False
    min_tokens: Annotated[int, Field(ge=0)] = 0
    return_token_ids: bool = False
    drafter: str | None = None
    adapt: bool = True
    trace: bool = False

    @model_validator(mode="before")
    @classmethod
    def _drop_what_asks_for_nothing(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            return body
        return drop_what_asks_for_nothing(body, cls.model_fields)

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Add what may be said without asking for anything."""
        schema = super().__get_pydantic_json_schema__(core, handler)
        for name, (why, neutral) in UNSUPPORTED.items():
            passes = {"enum": [*neutral, None]}
            if name in CALLED.values():  # but see the conditions
                passes = {"type": ["array", "null"], "items": {"type": "object"}}
            note = {"description": f"Not supported: {why}."}
            schema["properties"].setdefault(name, passes | note)
        names = schema["properties"].keys()
        schema["allOf"] = [one for one in CONDITIONS if one["if"]["properties"].keys() <= names]
        return schema

    @field_validator("stop", mode="before")
    @classmethod
    def _list_stops(cls, value: Any) -> Any:
        stops = [value] if isinstance(value, str) else value
        if not isinstance(stops, list) or not all(isinstance(one, str) for one in stops):
            raise ValueError("give a string or a list of strings")
        if len(stops) > MOST_STOPS or "" in stops:
            raise ValueError(f"give at most {MOST_STOPS} strings, none of them empty")
        if any(len(one) > MOST_STOP_LENGTH for one in stops):
            raise ValueError(f"give strings of at most {MOST_STOP_LENGTH} characters")
        return tuple(stops)

    @field_validator("logit_bias", "metadata", mode="before")
    @classmethod
    def _count_keys(cls, value: Any, info: ValidationInfo) -> Any:
        biased = info.field_name == "logit_bias"
        most, what = (BIASES, "token ids") if biased else (MOST_LABELS, "labels")
        if isinstance(value, dict) and len(value) > most:
            raise ValueError(f"give at most {most} {what}")
        return value

    @field_validator("logit_bias")
    @classmethod
    def _check_biased(cls, value: dict[str, float]) -> dict[str, float]:
        # One way to write each id, so that none is there twice.
        if not all(re.fullmatch("0|[1-9][0-9]{0,8}", id) for id in value):
            raise ValueError('the keys must be token ids, such as "50"')
        return value

    @field_validator("stop_token_ids", mode="before")
    @classmethod
    def _list_stop_ids(cls, value: Any) -> Any:
        return tuple(value) if isinstance(value, list) else value

    @model_validator(mode="after")
    def _check_together(self) -> Parameters:
        if self.stream_options is not None and not self.stream:
            refuse_alone("stream_options", "with 'stream': true")
        if self.prompt_logprobs is not None and self.stream:
            refuse_alone("prompt_logprobs", "without 'stream': true")
        return self


class ChatParameters(Parameters):
    """Body of /v1/chat/completions.

    Attributes:
      messages: with `role` and `content`, which is a string or a list of text parts.
      max_completion_tokens: OpenAI's new name of max_tokens.
      chat_template_kwargs: variables of the model's chat template, such as enable_thinking.
      reasoning_effort: `none` sets the variable enable_thinking to false.
      logprobs: give the log-probability of each token, and of the `top_logprobs` likeliest ones at
        its place.
    """

    messages: Messages
    reasoning_effort: Annotated[str | None, WithJsonSchema({"enum": ["none", None]})] = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    chat_template_kwargs: dict[str, Any] = {}
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=MOST_CHAT_LOGPROBS)] = 0

    @property
    def alternatives(self) -> int | None:
        """Alternatives of each token to list with log-probabilities; None for none of either."""
        return self.top_logprobs if self.logprobs else None

    @property
    def prompt_alternatives(self) -> int | None:
        """The same for each token of the prompt."""
        return self.prompt_logprobs

    @property
    def variables(self) -> dict[str, Any]:
        """Variables of the chat template."""
        quick = {"enable_thinking": False} if self.reasoning_effort is not None else {}
        return quick | self.chat_template_kwargs

    @property
    def choices(self) -> int:
        """Choices of the answer."""
        return self.n

    @model_validator(mode="after")
    def _check_chat(self) -> ChatParameters:
        value = self.reasoning_effort
        if value is not None and not asks_for_nothing("reasoning_effort", value):
            refuse("reasoning_effort")
        if self.top_logprobs and not self.logprobs:
            refuse_alone("top_logprobs", "with 'logprobs': true")
        return self


class TextParameters(Parameters):
    """Body of /v1/completions.

    Attributes:
      prompt: a string, token ids, or a list of one of them.
      max_tokens: 0 to read the prompt alone.
      echo: begin with the prompt, and with its log-probabilities if there are any.
      logprobs: give the log-probability of each token, and of so many alternatives.
    """

    prompt: Annotated[Any, WithJsonSchema(PROMPT)]
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    echo: bool = False
    logprobs: Annotated[
        Annotated[int, Field(ge=0, le=MOST_TEXT_LOGPROBS)] | None, WithJsonSchema(_COUNT)
    ] = None

    @property
    def alternatives(self) -> int | None:
        """Alternatives of each token to list with log-probabilities; None for none of either."""
        return self.logprobs

    @property
    def prompt_alternatives(self) -> int | None:
        """The same for each token of the prompt."""
        asked = [self.prompt_logprobs, self.logprobs if self.echo else None]
        # The engine generates nothing only for those who ask about their prompts.
        asked += [0 if self.max_tokens == 0 else None]
        return max((one for one in asked if one is not None), default=None)

    @property
    def choices(self) -> int:
        """Choices of the answer."""
        return self.n * len(self.prompts)

    @field_validator("logprobs", mode="before")
    @classmethod
    def _drop_false(cls, value: Any) -> Any:
        return None if value is False else value

    @field_validator("prompt")
    @classmethod
    def _check_prompt(cls, value: Any) -> str | Ids | list[str] | list[Ids]:
        several = isinstance(value, list) and value and not _is_id(value[0])
        for one in value if several else [value]:
            text = isinstance(one, str) and one
            ids = isinstance(one, list) and one and all(_is_id(item) for item in one)
            if not text and not ids:
                raise ValueError("give a text or token ids, or a list of them; none may be empty")
        return value

    @property
    def prompts(self) -> list[str] | list[Ids]:
        """The prompts as a list."""
        one = isinstance(self.prompt, str) or _is_id(self.prompt[0])
        return [self.prompt] if one else self.prompt


Body: TypeAlias = ChatParameters | TextParameters


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
