"""Known parameters that this server does not support: only values that ask for nothing may pass."""

from __future__ import annotations

from typing import Any

from pydantic_core import PydanticCustomError

# Parameters of OpenAI and vLLM with the values that ask for nothing. A penalty depends on the path
# to a token, which differs between the branches of a draft tree.
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


def drop_what_asks_for_nothing(body: dict[str, Any]) -> dict[str, Any]:
    """Return a request without the parameters that are not supported.

    Raises:
      PydanticCustomError: one of them asks for something.
    """
    kept = dict(body)
    for name in [name for name in body if name in UNSUPPORTED]:
        value = kept.pop(name)
        if value is not None and not any(_equal(value, neutral) for neutral in UNSUPPORTED[name]):
            raise PydanticCustomError(
                "unsupported_parameter",
                "Unsupported parameter: '{param}' is not supported by this server.",
                {"param": name},
            )
    return kept


def _equal(value: Any, neutral: Any) -> bool:
    """Compare JSON values; 0 is not false, though Python says so."""
    return isinstance(value, bool) == isinstance(neutral, bool) and value == neutral
