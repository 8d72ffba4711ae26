"""Tool calls of chat messages, in the forms that chat templates read.

Histories come as OpenAI's API has them: a call's arguments are JSON text, its message has no
content, and its result names the call by id.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from jaxspec.io.text.messages import join_parts, replace_surrogates

_ID_LENGTH = 9  # of call ids, in Mistral's templates


class Form(NamedTuple):
    """How tool calls are given to a template, by default as transformers has them.

    Attributes:
      text: arguments are JSON text; else a mapping.
      none: content of calls without text is None; else "".
      short: ids of calls have nine letters and digits.
    """

    text: bool = False
    none: bool = False
    short: bool = False


def convert_messages(messages: Sequence[Mapping[str, Any]], form: Form) -> list[dict[str, Any]]:
    """Return messages with their tool calls in one form.

    Keys without a value are left out. A result without a name or an id gets its call's. Functions
    of OpenAI's older API become tools.

    Raises:
      ValueError: `tool_calls` is no list of calls.
    """
    found: list[dict[str, Any]] = []
    names: dict[Any, Any] = {}  # of calls, by id
    waiting: list[tuple[Any, Any]] = []  # calls without a result: (id, name)
    for number, given in enumerate(messages, 1):
        message = {key: value for key, value in given.items() if value is not None}
        if "content" in given:
            message["content"] = join_parts(given["content"])
        if has_calls(message):
            calls = _list_given(message, number)
            message.pop("function_call", None)
            made = [_convert_call(one, form, (number, at)) for at, one in enumerate(calls)]
            message["tool_calls"] = made
            if not message.get("content"):
                message["content"] = None if form.none else ""
            waiting = [(one.get("id"), one.get("function", {}).get("name")) for one in made]
            names |= {id: name for id, name in waiting if id is not None}
        else:
            message.pop("tool_calls", None)  # an empty list is no call, but templates count it
        if message.get("role") in ("tool", "function"):
            _convert_result(message, form, names, waiting)
        found.append(message)
    return found


def list_calls(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the functions that converted messages call: `name` and `arguments`."""
    calls = [call for message in messages for call in message.get("tool_calls", ())]
    return [call["function"] for call in calls if "function" in call]


def has_calls(message: Mapping[str, Any]) -> bool:
    """Whether a message calls a tool, or a function of OpenAI's older API."""
    return bool(message.get("tool_calls") or message.get("function_call"))


def _list_given(message: Mapping[str, Any], number: int) -> list[dict[str, Any]]:
    """Return a message's calls as they are given."""
    calls = message.get("tool_calls") or [
        {"type": "function", "function": message["function_call"]}
    ]
    if isinstance(calls, list) and all(isinstance(call, dict) for call in calls):
        functions = [call.get("function", call) for call in calls]
        if all(isinstance(function, dict) for function in functions):
            return calls
    raise ValueError(
        f"message {number}: tool_calls is not a list of calls "
        '{"type": "function", "function": {"name": …, "arguments": …}}'
    )


def _convert_call(call: dict[str, Any], form: Form, place: tuple[int, int]) -> dict[str, Any]:
    """Return a call with its arguments in the asked-for form; a function alone becomes a call."""
    if "function" not in call and "name" in call:
        call = {"type": "function", "function": call} | {
            key: call[key] for key in ("id",) if key in call
        }
    if "function" in call:
        mapping, text = _read_arguments(call["function"].get("arguments"))
        arguments = text if form.text else mapping
        function = call["function"] | {"arguments": arguments}
        call = {"type": "function"} | call | {"function": function}
    return call | {"id": _shorten(call.get("id"), place)} if form.short else call


def _convert_result(
    message: dict[str, Any], form: Form, names: dict[Any, Any], waiting: list[tuple[Any, Any]]
) -> None:
    """Give a result the name and the id of its call."""
    message["role"] = "tool"
    if message.get("content") is None:
        message["content"] = ""
    id = message.get("tool_call_id")
    if form.short and id is not None:
        id = message["tool_call_id"] = _shorten(id, (0, 0))
    # Without ids, results follow the order of calls.
    known = [one for one in waiting if id in (one[0], None)] or [
        one for one in waiting if one[0] is None
    ]
    found = known[0] if known else (id, names.get(id))
    if found in waiting:
        waiting.remove(found)
    for key, value in (("tool_call_id", found[0]), ("name", found[1])):
        if value is not None:
            message.setdefault(key, value)


def _read_arguments(given: Any) -> tuple[Any, str]:
    """Return arguments as a mapping and as JSON text; as they are if they are no JSON object."""
    value, text = given, given
    for _ in range(2):  # some clients write JSON text into JSON text
        if isinstance(value, str):
            try:
                value, text = replace_surrogates(json.loads(value)) if value.strip() else {}, value
            except ValueError:
                break
    value = {} if value is None else value
    if not isinstance(value, dict):
        return given, given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
    if isinstance(text, str) and value:
        return value, text  # as it was written
    return value, json.dumps(value, ensure_ascii=False)


def _shorten(id: Any, place: tuple[int, int]) -> str:
    """Return an id of nine letters and digits, the same for the same id."""
    text = str(id if id is not None else place)
    if len(text) == _ID_LENGTH and text.isalnum():
        return text
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:_ID_LENGTH]
