"""What a request may say. Anything else is refused: a parameter is never ignored."""

from __future__ import annotations

import re
from typing import Annotated, Any, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from jaxspec.serve.bias import BIASES, LARGEST

MOST_STOPS = 4  # OpenAI's limit
MOST_SAMPLES = 128  # OpenAI's limit of n
MOST_CHAT_LOGPROBS, MOST_TEXT_LOGPROBS = 20, 5  # OpenAI's limits of alternatives to a token

# Parameters of OpenAI and vLLM that are not supported, with the values that ask for nothing. A
# penalty depends on the path to a token, which differs between the branches of a draft tree.
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "best_of": (1,),
    "echo": (False,),
    "frequency_penalty": (0,),
    "function_call": ("none",),
    "functions": ([],),
    "guided_json": (),
    "guided_regex": (),
    "length_penalty": (1,),
    "metadata": ({},),
    "modalities": (["text"],),
    "parallel_tool_calls": (),
    "prediction": (),
    "presence_penalty": (0,),
    "prompt_logprobs": (),
    "reasoning_effort": (),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "use_beam_search": (False,),
    "verbosity": (),
    "web_search_options": (),
}

Ids: TypeAlias = list[int]
_Bias = Annotated[float, Field(ge=-LARGEST, le=LARGEST)]


class _Closed(BaseModel):
    """A JSON object without other keys, whose values have exactly the types that are written."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class StreamOptions(_Closed):
    """Options of a stream.

    Attributes:
      include_usage: end with a chunk that has the usage.
    """

    include_usage: bool = False
    include_obfuscation: bool = False

    @field_validator("include_obfuscation")
    @classmethod
    def _refuse_obfuscation(cls, value: bool) -> bool:
        if value:
            raise ValueError("padding against traffic analysis is not supported")
        return value


class Parameters(_Closed):
    """Parameters that both endpoints take. A null is the same as an absent parameter.

    Attributes:
      min_p, top_k, ignore_eos, min_tokens, stop_token_ids: as in vLLM; top_k of 0 or -1 is no limit.
      seed: of sampling; with the same seed and prompt the text is the same under any load. None: a
        seed that no other request has.
      logit_bias: what to add to the logits of tokens, by their ids.
      user: a label, which is neither used nor kept.
      return_token_ids: give the ids of the new tokens beside their text.
      method: `ar` decodes without a drafter, for comparisons; the text is the same.
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
    stop_token_ids: tuple[int, ...] = ()
    logit_bias: Annotated[dict[str, _Bias], Field(max_length=BIASES)] = {}
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
        if not isinstance(body, dict):
            return body
        kept = {name: value for name, value in body.items() if value is not None}
        for name in [name for name in kept if name in UNSUPPORTED]:
            value = kept.pop(name)
            if not any(_equal(value, neutral) for neutral in UNSUPPORTED[name]):
                raise PydanticCustomError(
                    "unsupported_parameter",
                    "Unsupported parameter: '{param}' is not supported by this server.",
                    {"param": name},
                )
        return kept

    @property
    def alternatives(self) -> int | None:
        """Alternatives of each token to list with log-probabilities; None for none of either."""
        raise NotImplementedError

    @field_validator("stop", mode="before")
    @classmethod
    def _list_stops(cls, value: Any) -> Any:
        stops = [value] if isinstance(value, str) else value
        if not isinstance(stops, list) or not all(isinstance(one, str) for one in stops):
            raise ValueError("give a string or a list of strings")
        if len(stops) > MOST_STOPS or "" in stops:
            raise ValueError(f"give at most {MOST_STOPS} strings, none of them empty")
        return tuple(stops)

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

    messages: Annotated[list[dict[str, Any]], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    chat_template_kwargs: dict[str, Any] = {}
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=MOST_CHAT_LOGPROBS)] = 0

    @property
    def alternatives(self) -> int | None:
        """See `Parameters.alternatives`."""
        return self.top_logprobs if self.logprobs else None

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
        """See `Parameters.alternatives`."""
        return self.logprobs

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


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _equal(value: Any, neutral: Any) -> bool:
    """Compare JSON values; 0 is not false, though Python says so."""
    return isinstance(value, bool) == isinstance(neutral, bool) and value == neutral
