"""Records of training data, in the forms in which conversations and texts are published.

A file holds JSON Lines or one JSON array, see `jaxspec.io.text.json_records`, of these records:

- {"messages": [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}]}; the key
  may also be `conversations`, `conversation` or `dialog`. `system` beside it is a first message,
  and `tools` are the schemas of the tools that it calls
- {"conversations": [{"from": "human", "value": "…"}, {"from": "gpt", "value": "…"}]} (ShareGPT)
- {"prompt": "…", "response": "…"}; `prompt` may be a list of messages, and `completion` is read as
  `response`
- {"turns": ["…", "…"]}: a conversation's user turns (MT-Bench, Spec-Bench); the first is the prompt
- {"question": "…", "answer": "…"} (GSM8K), like a prompt and its response
- {"instruction": "…", "input": "…", "output": "…"} (Alpaca), the same
- {"text": "…"}
- {"tokens": [1, 2, 3], "prompt_length": 1}: token ids, used as they are; `training.regenerate`
  writes these

The form of a record is found by its keys, in the order tokens, messages, prompt, turns, question,
instruction, text. Any record may have a `domain`. A first line with the key `settings` says how the
file was made and is skipped. Names of roles are those of `jaxspec.io.text.messages`, and `roles`
adds to them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxspec.io.text.json_records import BrokenRecord, read_objects
from jaxspec.io.text.messages import (
    UnknownRole,
    check_roles,
    read_conversation,
    read_instruction,
    read_messages,
    replace_surrogates,
)

from .documents import DataError

_FORMS = (
    "tokens + prompt_length, messages, conversations, prompt (+ response), turns, "
    "question (+ answer), instruction (+ input, output), text"
)


class Sample(NamedTuple):
    """Token ids, and which of them to predict.

    Attributes:
      tokens: int32 [n].
      loss_mask: bool [n]; True for tokens to be predicted.
      domain: domain of the record, or None.
      place: file and line of the record, for messages.
    """

    tokens: np.ndarray
    loss_mask: np.ndarray
    domain: str | None = None
    place: str = ""


@dataclasses.dataclass(frozen=True)
class DataRecord:
    """One record in one of the forms; the fields of the other forms are None.

    Attributes:
      place: file and line.
      domain: its `domain` or `category`, or None.
      messages: chat messages with at least `role` and `content`.
      tools: JSON schemas of the tools in `messages`.
      prompt: text or chat messages.
      response: text; None if there is only a prompt.
      text: plain text, all of it to be predicted.
      tokens: token ids; those from `prompt_length` on are to be predicted.
      prompt_length: number of tokens of the prompt in `tokens`.
    """

    place: str
    domain: str | None = None
    messages: list[dict] | None = None
    tools: list[dict] | None = None
    prompt: str | list[dict] | None = None
    response: str | None = None
    text: str | None = None
    tokens: list[int] | None = None
    prompt_length: int = 0

    def __post_init__(self) -> None:
        for name in ("domain", "messages", "tools", "prompt", "response", "text"):
            object.__setattr__(self, name, replace_surrogates(getattr(self, name)))


def read_records(path: Path | str, roles: Mapping[str, str] | None = None) -> list[DataRecord]:
    """Read all records of a file, in order.

    Args:
      path: .jsonl or .json, or either gzipped.
      roles: further names of roles, see `jaxspec.io.text.messages.read_messages`.

    Raises:
      DataError: the file is missing or holds no records, or a record is broken, of no known form or
        has a role that is unknown; the message names file and line.
    """
    try:
        check_roles(roles)
    except ValueError as error:
        raise DataError(str(error)) from None
    records, unknown = [], []
    for place, content in _read_objects(Path(path)):
        try:
            records.append(_record(content, place, roles))
        except UnknownRole as error:  # go on, to name all of them
            unknown.append(error)
        except DataError:
            if unknown:
                break
            raise
    if unknown:
        raise DataError(_describe_roles(unknown))
    if not records:
        raise DataError(f"{path} holds no records: give one JSON object per line")
    return records


def _read_objects(path: Path) -> Iterator[tuple[str, dict]]:
    if not path.is_file():
        raise DataError(f"no data file at {path}: give a .jsonl or .json file, or one gzipped")
    try:
        yield from read_objects(path)
    except BrokenRecord as error:
        raise DataError(f"{error.place}: {error.fault.removeprefix('is ')}") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror})") from None


def _describe_roles(unknown: list[UnknownRole]) -> str:
    """Say which roles are unknown, and what maps them."""
    counts = Counter(error.role for error in unknown)
    others = [f"{role!r} ({count})" for role, count in counts.items()]
    several = f"; conversations with unknown roles: {', '.join(others)}" if len(others) > 1 else ""
    named = [role for role in counts if isinstance(role, str)]
    if not named:
        return f"{unknown[0]}{several}"
    return (
        f"{unknown[0]}{several}; map such roles, as in --roles {named[0]!r} assistant "
        "(--data.roles where a drafter is trained)"
    )


def _record(content: dict, place: str, roles: Mapping[str, str] | None) -> DataRecord:
    domain = content.get("domain") or content.get("category")
    if domain is not None and not isinstance(domain, str):
        raise DataError(f"{place}: domain is {domain!r}: a string is expected")
    if "tokens" in content:
        return DataRecord(place, domain, **_token_fields(content, place))
    messages = _checked(read_conversation, content, place, roles)
    if messages is not None:
        return DataRecord(place, domain, messages=messages, tools=_tools(content, place))
    if "prompt" in content:
        prompt, response = content["prompt"], content.get("response", content.get("completion"))
        if not isinstance(prompt, str):
            prompt = _checked(read_messages, prompt, "prompt", place, roles)
        return DataRecord(
            place, domain, prompt=prompt, response=_optional_text(response, "response", place)
        )
    if "turns" in content:
        turns = content["turns"]
        if not isinstance(turns, list) or not turns:
            raise DataError(f"{place}: turns is not a list of texts")
        first = {"role": "user", "content": _text(turns[0], "turns", place)}
        return DataRecord(place, domain, prompt=[first])
    return _plain_record(content, place, domain)


def _plain_record(content: dict, place: str, domain: str | None) -> DataRecord:
    """Read a record of texts under names of their own."""
    if "question" in content:
        answer = _optional_text(content.get("answer"), "answer", place)
        question = _text(content["question"], "question", place)
        return DataRecord(place, domain, prompt=question, response=answer)
    if "instruction" in content:
        prompt = _text(read_instruction(content), "instruction", place)
        output = _optional_text(content.get("output"), "output", place)
        return DataRecord(place, domain, prompt=prompt, response=output)
    if "text" in content:
        return DataRecord(place, domain, text=_text(content["text"], "text", place))
    keys = ", ".join(map(str, list(content)[:6])) or "none"
    raise DataError(f"{place}: a record in no known form (its keys: {keys}): expected {_FORMS}")


def _tools(content: dict, place: str) -> list | None:
    """Return the schemas of tools, which some files hold as JSON text."""
    tools = content.get("tools") or None
    if isinstance(tools, str):
        with contextlib.suppress(ValueError):
            tools = json.loads(tools) or None
    if tools is not None and not isinstance(tools, list):
        raise DataError(f"{place}: tools is not a list of JSON schemas")
    return tools


def _text(value, key: str, place: str) -> str:
    if not isinstance(value, str) or not value:
        raise DataError(f"{place}: {key} is not a string with text in it")
    return value


def _optional_text(value, key: str, place: str) -> str | None:
    return None if value is None else _text(value, key, place)


def _token_fields(content: dict, place: str) -> dict:
    tokens, prompt_length = content["tokens"], content.get("prompt_length")
    if not isinstance(tokens, list) or not all(
        type(token) is int and 0 <= token < 2**31 for token in tokens
    ):
        raise DataError(f"{place}: tokens is not a list of token ids")
    if type(prompt_length) is not int or not 0 <= prompt_length < len(tokens):
        raise DataError(
            f"{place}: prompt_length is {prompt_length!r}: give a number of prompt tokens below "
            f"the {len(tokens)} tokens, so that some are left to predict"
        )
    return {"tokens": tokens, "prompt_length": prompt_length}


def _checked(read, *arguments):
    try:
        return read(*arguments)
    except UnknownRole:
        raise
    except ValueError as error:
        raise DataError(str(error)) from None
