"""Read chat messages in the forms in which conversations are published."""

from __future__ import annotations

from typing import Any

_ROLES = {
    "human": "user",
    "gpt": "assistant",
    "user": "user",
    "assistant": "assistant",
    "system": "system",
    "tool": "tool",
}
# Keys of a record that may hold its messages.
MESSAGE_KEYS = ("messages", "conversations")


def read_messages(value: Any, key: str, place: str) -> list[dict[str, Any]]:
    """Return messages with `role` and `content`, and the template's other keys (`tool_calls`, …).

    Args:
      value: a list of {"role", "content"} or, as ShareGPT writes them, {"from", "value"}. Content
        may be a list of parts with `text`.
      key: key of the record that holds the list, for error messages.
      place: file and line of the record, for error messages.

    Raises:
      ValueError: it is no list of such messages.
    """
    if not isinstance(value, list) or not value:
        raise ValueError(f"{place}: {key} is not a list of messages")
    return [
        _message(entry, f"{place}: message {number} of {key}")
        for number, entry in enumerate(value, 1)
    ]


def split_turns(messages: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """Split a conversation into what precedes its first answer, and the user turns that follow."""
    roles = [message["role"] for message in messages]
    end = roles.index("assistant") if "assistant" in roles else len(messages)
    later = tuple(one["content"] for one in messages[end:] if one["role"] == "user")
    return messages[:end], later


def _message(entry: Any, where: str) -> dict[str, Any]:
    if not isinstance(entry, dict):
        raise ValueError(f"{where} is not a JSON object with role and content")
    role, content = entry.get("role", entry.get("from")), entry.get("content", entry.get("value"))
    if not isinstance(role, str) or role not in _ROLES:
        raise ValueError(
            f"{where} has the role {role!r}: expected one of {', '.join(sorted(_ROLES))}"
        )
    if isinstance(content, list) and all(
        isinstance(part, dict) and isinstance(part.get("text"), str) for part in content
    ):
        content = "".join(part["text"] for part in content)
    if content is None and entry.get("tool_calls"):
        content = ""
    if not isinstance(content, str):
        raise ValueError(f"{where} has no text as its content")
    # Files made from tables give every message every key, with None if it does not apply.
    known = ("role", "content", "from", "value")
    extra = {
        name: value for name, value in entry.items() if name not in known and value is not None
    }
    return {"role": _ROLES[role], "content": content, **(extra if "role" in entry else {})}
