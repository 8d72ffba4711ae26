"""What a request may say. Anything else is refused: a parameter is never ignored."""

from __future__ import annotations

import re
from typing import Annotated, Any, TypeAlias

from pydantic import BaseModel, ConfigDict, FailFast, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from jaxspec.serve.bias import BIASES, LARGEST
from jaxspec.serve.http.unsupported import drop_what_asks_for_nothing

MOST_STOPS = 4  # OpenAI's limit
MOST_STOP_LENGTH = 1000  # the engine compares each beginning of a stop with the end of a text
MOST_SAMPLES = 128  # OpenAI's limit of n
MOST_CHAT_LOGPROBS, MOST_TEXT_LOGPROBS = 20, 5  # OpenAI's limits of alternatives to a token

Ids: TypeAlias = list[int]
_Bias = Annotated[float, Field(ge=-LARGEST, le=LARGEST)]


class _Closed(BaseModel):
    """A JSON object without other keys, whose values have exactly the types that are written.

    A null is the same as an absent key.
    Validation ends at the first mistake: a list of a million mistakes would take seconds, in which
    no stream goes on.
    """

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            return body
        kept = {name: value for name, value in body.items() if value is not None}
        for name in kept:
            if name not in cls.model_fields:
                shown = name[:100].encode(errors="replace").decode()  # half surrogate pairs too
                message = "Unknown parameter: '{param}'."
                raise PydanticCustomError("unknown_parameter", message, {"param": shown})
        return kept


class StreamOptions(_Closed):
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


class Parameters(_Closed):
    """Parameters that both endpoints take.

    Attributes:
      min_p, top_k, ignore_eos, min_tokens, stop_token_ids: as in vLLM; top_k of 0 or -1 is no limit.
      seed: of sampling; with the same seed and prompt the text is the same under any load. None: a
        seed that no other request has.
      logit_bias: what to add to the logits of tokens, by their ids.
      user: a label, which is neither used nor kept.
      return_token_ids: give the ids of the new tokens beside their text.
      method: drafter of this request, one of the server's; `ar` decodes without one. The text is the
        same.
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
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: Annotated[tuple[int, ...], FailFast()] = ()
    logit_bias: dict[str, _Bias] = {}
    n: Annotated[int, Field(ge=1, le=MOST_SAMPLES)] = 1
    user: str | None = None
    ignore_eos: bool = False
    min_tokens: Annotated[int, Field(ge=0)] = 0
    return_token_ids: bool = False
    method: str | None = None
    trace: bool = False

    @model_validator(mode="before")
    @classmethod
    def _drop_what_asks_for_nothing(cls, body: Any) -> Any:
        return drop_what_asks_for_nothing(body) if isinstance(body, dict) else body

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

    @field_validator("logit_bias", mode="before")
    @classmethod
    def _count_biased(cls, value: Any) -> Any:
        if isinstance(value, dict) and len(value) > BIASES:
            raise ValueError(f"give at most {BIASES} token ids")
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
            raise PydanticCustomError(
                "unsupported_parameter",
                "'{param}' is only allowed with 'stream': true.",
                {"param": "stream_options"},
            )
        return self


class ChatParameters(Parameters):
    """Body of /v1/chat/completions.

    Attributes:
      messages: with `role` and `content`, which is a string or a list of text parts.
      max_completion_tokens: OpenAI's new name of max_tokens.
      chat_template_kwargs: variables of the model's chat template, such as enable_thinking.
      logprobs: give the log-probability of each token, and of the `top_logprobs` likeliest ones at
        its place.
    """

    messages: Annotated[list[dict[str, Any]], Field(min_length=1), FailFast()]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    chat_template_kwargs: dict[str, Any] = {}
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=MOST_CHAT_LOGPROBS)] = 0

    @property
    def alternatives(self) -> int | None:
        """Alternatives of each token to list with log-probabilities; None for none of either."""
        return self.top_logprobs if self.logprobs else None

    @property
    def choices(self) -> int:
        """Choices of the answer."""
        return self.n

    @model_validator(mode="after")
    def _check_logprobs(self) -> ChatParameters:
        if self.top_logprobs and not self.logprobs:
            raise PydanticCustomError(
                "unsupported_parameter",
                "'{param}' is only allowed with 'logprobs': true.",
                {"param": "top_logprobs"},
            )
        return self


class TextParameters(Parameters):
    """Body of /v1/completions.

    Attributes:
      prompt: a string, token ids, or a list of one of them.
      logprobs: give the log-probability of each token, and of so many alternatives.
    """

    prompt: Any
    logprobs: Annotated[int, Field(ge=0, le=MOST_TEXT_LOGPROBS)] | None = None

    @property
    def alternatives(self) -> int | None:
        """Alternatives of each token to list with log-probabilities; None for none of either."""
        return self.logprobs

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
