"""Records of training data: JSON Lines in the forms in which conversations and texts are published.

- {"messages": [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}]}; the key
  may also be `conversations`
- {"conversations": [{"from": "human", "value": "…"}, {"from": "gpt", "value": "…"}]} (ShareGPT)
- {"prompt": "…", "response": "…"}; `prompt` may be a list of messages, and `completion` is read as
  `response`
- {"turns": ["…", "…"]}: a conversation's user turns (MT-Bench, Spec-Bench); the first is the prompt
- {"question": "…", "answer": "…"} (GSM8K), like a prompt and its response
- {"text": "…"}
- {"tokens": [1, 2, 3], "prompt_length": 1}: token ids, used as they are; `training.regenerate`
  writes these

The form of a record is found by its keys, in the order tokens, messages, prompt, turns, question,
text. Any record may have a `domain`. A first line with the key `settings` says how the file was made and is skipped.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxspec.io.messages import MESSAGE_KEYS, read_messages
from jaxspec.io.tokenizer import replace_surrogates

from .data import DataError

SETTINGS = "settings"
_FORMS = (
    "tokens + prompt_length, messages, conversations, prompt (+ response), turns, "
    "question (+ answer), text"
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


def read_records(path: Path | str) -> list[DataRecord]:
    """Read all records of a .jsonl or .jsonl.gz file, in order.

    Raises:
      DataError: the file is missing or holds no records, or a line is broken or of no known form;
        the message names file and line.
    """
    records = [_record(content, place) for place, content in read_objects(path)]
    if not records:
        raise DataError(f"{path} holds no records: give one JSON object per line")
    return records


def read_objects(path: Path | str) -> Iterator[tuple[str, dict]]:
    """Yield (place, JSON object) of every line, except blank ones and a first line of settings."""
    path = Path(path)
    if not path.is_file():
        raise DataError(f"no data file at {path}: give a .jsonl or .jsonl.gz file")
    number = 0
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                content = json.loads(line)
                if not isinstance(content, dict):
                    raise DataError(f"{path}, line {number}: not a JSON object: give one per line")
                if number > 1 or set(content) != {SETTINGS}:
                    yield f"{path}, line {number}", content
    except json.JSONDecodeError as error:
        raise DataError(
            f"{path}, line {number}: not JSON ({error.msg}): give one object per line"
        ) from None
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise DataError(f"{path}, after line {number}: cannot be read ({error})") from None


def _record(content: dict, place: str) -> DataRecord:
    domain = content.get("domain") or content.get("category")
    if domain is not None and not isinstance(domain, str):
        raise DataError(f"{place}: domain is {domain!r}: a string is expected")
    if "tokens" in content:
        return DataRecord(place, domain, **_token_fields(content, place))
    for key in MESSAGE_KEYS:
        if key in content:
            tools = content.get("tools") or None
            if tools is not None and not isinstance(tools, list):
                raise DataError(f"{place}: tools is not a list of JSON schemas")
            return DataRecord(
                place, domain, messages=_messages(content[key], key, place), tools=tools
            )
    if "prompt" in content:
        prompt, response = content["prompt"], content.get("response", content.get("completion"))
        if not isinstance(prompt, str):
            prompt = _messages(prompt, "prompt", place)
        if response is not None:
            _text(response, "response", place)
        return DataRecord(place, domain, prompt=prompt, response=response)
    if "turns" in content:
        turns = content["turns"]
        if not isinstance(turns, list) or not turns:
            raise DataError(f"{place}: turns is not a list of texts")
        first = {"role": "user", "content": _text(turns[0], "turns", place)}
        return DataRecord(place, domain, prompt=[first])
    if "question" in content:
        answer = content.get("answer")
        if answer is not None:
            _text(answer, "answer", place)
        question = _text(content["question"], "question", place)
        return DataRecord(place, domain, prompt=question, response=answer)
    if "text" in content:
        return DataRecord(place, domain, text=_text(content["text"], "text", place))
    keys = ", ".join(map(str, list(content)[:6])) or "none"
    raise DataError(f"{place}: a record in no known form (its keys: {keys}): expected {_FORMS}")


def _text(value, key: str, place: str) -> str:
    if not isinstance(value, str) or not value:
        raise DataError(f"{place}: {key} is not a string with text in it")
    return value


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


def _messages(value, key: str, place: str) -> list[dict]:
    try:
        return read_messages(value, key, place)
    except ValueError as error:
        raise DataError(str(error)) from None
