"""Read chat messages in the forms in which conversations are published, and mend their texts."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

# Roles of chat templates, and the names under which they are published.
_NAMES = {
    "user": ("user", "human", "prompter"),
    "assistant": ("assistant", "gpt", "chatgpt", "bing", "bard", "model", "bot", "ai"),
    "system": ("system", "developer"),
    "tool": ("tool", "observation", "function", "function_response", "tool_response", "ipython"),
}
ROLES = {name: role for role, names in _NAMES.items() for name in names}
# The assistant's calls of tools, as JSON.
_CALLS = ("function_call", "tool_call")
# Keys of a record that may hold its messages.
MESSAGE_KEYS = ("messages", "conversations", "conversation", "dialog", "dialogue")


class UnknownRole(ValueError):
    """A message has a role that nothing maps to one of a chat template's.

    Attributes:
      role: its name.
    """

    def __init__(self, where: str, role: Any):
        known = ", ".join(sorted((*ROLES, *_CALLS)))
        super().__init__(f"{where} has the role {role!r}: expected one of {known}")
        self.role = role


def read_messages(
    value: Any, key: str, place: str, roles: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    """Return messages with `role` and `content`, and the template's other keys (`tool_calls`, …).

    Args:
      value: a list of {"role", "content"} or, as ShareGPT writes them, {"from", "value"}. Content
        may be a list of parts with `text`. A message of the role `function_call` becomes one of the
        assistant's with `tool_calls`, if its content is JSON of them.
      key: key of the record that holds the list, for error messages.
      place: file and line of the record, for error messages.
      roles: further names of roles: {name: `user`, `assistant`, `system` or `tool`}.

    Raises:
      UnknownRole: a message has another role.
      ValueError: it is no list of such messages.
    """
    if not isinstance(value, list) or not value:
        raise ValueError(f"{place}: {key} is not a list of messages")
    names = ROLES | {name.casefold(): role for name, role in (roles or {}).items()}
    return [
        _message(entry, f"{place}: message {number} of {key}", names)
        for number, entry in enumerate(value, 1)
    ]


def read_conversation(
    record: Mapping[str, Any], place: str, roles: Mapping[str, str] | None = None
) -> list[dict[str, Any]] | None:
    """Return the messages of a record, after the system's if it has those apart; None without any.

    Raises:
      UnknownRole, ValueError: as `read_messages`.
    """
    key = find_messages_key(record)
    if key is None:
        return None
    messages = read_messages(record[key], key, place, roles)
    system = record.get("system") or record.get("system_prompt")
    if not isinstance(system, str) or messages[0]["role"] == "system":
        return messages
    return [{"role": "system", "content": system}, *messages]


def find_messages_key(record: Mapping[str, Any]) -> str | None:
    """Return the key of a record that holds its messages; None without any."""
    return next((key for key in MESSAGE_KEYS if key in record), None)


def is_empty(record: Mapping[str, Any]) -> bool:
    """Whether a record is an empty conversation; an empty request (`messages`) is a mistake."""
    return any(record.get(key) == [] for key in MESSAGE_KEYS[1:])


def read_instruction(record: Mapping[str, Any]) -> Any:
    """Return the prompt of a record with `instruction` and, for some, `input` (Alpaca)."""
    told, given = record["instruction"], record.get("input")
    return f"{told}\n\n{given}" if isinstance(told, str) and told and given else told


def check_roles(roles: Mapping[str, str] | None) -> None:
    """Check further names of roles.

    Raises:
      ValueError: one stands for no role of a chat template.
    """
    for name, role in (roles or {}).items():
        if role not in _NAMES:
            raise ValueError(
                f"the role {name!r} is mapped to {role!r}: give one of {', '.join(_NAMES)}"
            )


def join_parts(content: Any) -> Any:
    """Return the text of content that is a list of text parts, and other content as it is."""
    parts = content if isinstance(content, list) else [None]
    if all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in parts):
        return "".join(part["text"] for part in parts)
    return content


def split_turns(messages: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """Split a conversation into what precedes its first answer, and the user turns that follow.

    A greeting of the assistant is no answer.
    """
    roles = [message["role"] for message in messages]
    asked = roles.index("user") if "user" in roles else 0
    end = roles.index("assistant", asked) if "assistant" in roles[asked:] else len(messages)
    later = tuple(one["content"] for one in messages[end:] if one["role"] == "user")
    return messages[:end], later


def _message(entry: Any, where: str, names: Mapping[str, str]) -> dict[str, Any]:
    if not isinstance(entry, dict):
        raise ValueError(f"{where} is not a JSON object with role and content")
    given, content = entry.get("role", entry.get("from")), entry.get("content", entry.get("value"))
    role = names.get(given.casefold()) if isinstance(given, str) else None
    calls = None
    if role is None and isinstance(given, str) and given.casefold() in _CALLS:
        role, calls = "assistant", _read_calls(content)
    if role is None:
        raise UnknownRole(where, given)
    content = join_parts(content)
    if calls or (content is None and (entry.get("tool_calls") or entry.get("function_call"))):
        content = ""
    if not isinstance(content, str):
        raise ValueError(f"{where} has no text as its content")
    # Files made from tables give every message every key, with None if it does not apply.
    known = ("role", "content", "from", "value")
    extra = {
        name: value for name, value in entry.items() if name not in known and value is not None
    }
    extra = extra if "role" in entry else {}
    return {"role": role, "content": content, **extra, **({"tool_calls": calls} if calls else {})}


def _read_calls(content: Any) -> list[dict[str, Any]]:
    """Read calls of tools from JSON, {"name", "arguments"} or a list of it; none from other text."""
    try:
        found = json.loads(content) if isinstance(content, str) else content
    except ValueError:
        return []
    calls = found if isinstance(found, list) else [found]
    if not all(isinstance(call, dict) and isinstance(call.get("name"), str) for call in calls):
        return []
    return [{"type": "function", "function": call} for call in calls]


_SURROGATES = re.compile("[\\ud800-\\udfff]+")


def replace_surrogates(value: Any) -> Any:
    """Put U+FFFD in place of halves of surrogate pairs in all strings of a JSON value.

    Python's strings may hold such halves, from JSON's escapes and from the command line. Whole
    pairs become their characters. Source: WHATWG's conversion to scalar values (USVString of Web
    IDL).
    """
    copied = [value]
    waiting: list[Any] = [copied]  # copies whose values are not; a request may be nested deeply
    while waiting:
        here = waiting.pop()
        items = here.items() if isinstance(here, dict) else enumerate(here)
        for key, one in [item for item in items if isinstance(item[1], str | list | dict)]:
            if isinstance(one, str):
                here[key] = _replace_in(one)
            elif isinstance(one, list):
                here[key] = list(one)
                waiting.append(here[key])
            elif isinstance(one, dict):
                here[key] = {_replace_in(name): value for name, value in one.items()}
                waiting.append(here[key])
    return copied[0]


def _replace_in(text: Any) -> Any:
    return _SURROGATES.sub(_join_pairs, text) if isinstance(text, str) else text


def _join_pairs(found: re.Match[str]) -> str:
    return found[0].encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
