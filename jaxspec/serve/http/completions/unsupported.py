"""Known parameters that this server does not support: only values that ask for nothing may pass."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from pydantic_core import PydanticCustomError


class Unsupported(NamedTuple):
    """A parameter of OpenAI or vLLM.

    Attributes:
      why: what the server cannot do, or what to do instead.
      neutral: values that ask for nothing.
    """

    why: str
    neutral: tuple[Any, ...] = ()


_TOOLS = "it cannot make a model call tools: leave them out, or send 'tool_choice': 'none'"
_FORMS = "it cannot hold an answer to a form: ask for it in the prompt"
_TEXT = "answers are text"
_BEAMS = "there is no beam search"

UNSUPPORTED = {
    "add_generation_prompt": Unsupported("a chat's prompt ends where its answer begins", (True,)),
    "allowed_token_ids": Unsupported("use logit_bias"),
    "audio": Unsupported(_TEXT),
    "bad_words": Unsupported("use logit_bias", ([],)),
    "best_of": Unsupported("answers are not ranked: ask for n of them", (1,)),
    "continue_final_message": Unsupported("use /v1/completions", (False,)),
    "echo": Unsupported("only /v1/completions repeats a prompt", (False,)),
    "function_call": Unsupported(_TOOLS, ("none",)),
    "functions": Unsupported(_TOOLS, ([],)),
    "guided_json": Unsupported(_FORMS),
    "guided_regex": Unsupported(_FORMS),
    "include_stop_str_in_output": Unsupported("answers end before it", (False,)),
    "length_penalty": Unsupported(_BEAMS, (1,)),
    "modalities": Unsupported(_TEXT, (["text"],)),
    "parallel_tool_calls": Unsupported(_TOOLS, (True, False)),
    "prediction": Unsupported("drafts are made by the server's own drafter"),
    "priority": Unsupported("requests are taken in the order of their arrival", (0,)),
    "reasoning_effort": Unsupported(
        "it cannot tell a model how long to think: set the variables of its template by "
        "chat_template_kwargs",
        ("none",),
    ),
    "response_format": Unsupported(_FORMS, ({"type": "text"},)),
    "service_tier": Unsupported("there is one tier", ("auto", "default")),
    "skip_special_tokens": Unsupported("texts are without them: use return_token_ids", (True,)),
    "structured_outputs": Unsupported(_FORMS),
    "suffix": Unsupported("models continue a text, and fill no gap in it", ("",)),
    "tool_choice": Unsupported(_TOOLS, ("none", "auto")),
    "tools": Unsupported(_TOOLS, ([],)),
    "truncate_prompt_tokens": Unsupported("prompts are used whole"),
    "use_beam_search": Unsupported(_BEAMS, (False,)),
    "verbosity": Unsupported("ask for short or long answers in the prompt", ("medium",)),
    "web_search_options": Unsupported("it searches nothing"),
}
# Parameters with what a model may call, by those that may say that it must not.
CALLED = {"tool_choice": "tools", "function_call": "functions"}


def drop_what_asks_for_nothing(
    body: dict[str, Any], supported: Collection[str] = ()
) -> dict[str, Any]:
    """Return a request without the parameters that are not supported.

    Args:
      supported: names of parameters to keep, whatever their values.

    Raises:
      PydanticCustomError: one of the others asks for something.
    """
    kept = dict(body)
    for choice, tools in CALLED.items():
        if body.get(choice) == "none" and _is_list_of_objects(body.get(tools)):
            del kept[tools]
    for name in [name for name in kept if name in UNSUPPORTED and name not in supported]:
        value = kept.pop(name)
        if value is not None and not asks_for_nothing(name, value):
            refuse(name)
    return kept


def asks_for_nothing(name: str, value: Any) -> bool:
    """Whether a value of a parameter that is not supported may pass."""
    return any(_equal(value, neutral) for neutral in UNSUPPORTED[name].neutral)


def refuse(name: str) -> None:
    """Refuse a parameter that is not supported.

    Raises:
      PydanticCustomError: in any case.
    """
    raise PydanticCustomError(
        "unsupported_parameter",
        "Unsupported parameter: '{param}' is not supported by this server: {why}.",
        {"param": name, "why": UNSUPPORTED[name].why},
    )


def _equal(value: Any, neutral: Any) -> bool:
    """Compare JSON values; 0 is not false, though Python says so."""
    return isinstance(value, bool) == isinstance(neutral, bool) and value == neutral


def _is_list_of_objects(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, dict) for one in value)
