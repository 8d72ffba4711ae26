"""Prompt files: JSON lines in the forms that public benchmarks use, turned into prompts the same
way every time.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

PROMPT_TOKENS = 96
PASSAGE_CHARACTERS = 2048


@dataclasses.dataclass(frozen=True)
class Prompt:
    """One prompt.

    Attributes:
      domain: what it is reported under.
      content: what `jaxspec.decode` takes: text, token ids or chat messages.
      question: its identifier in the file (`question_id`, `task_id`); None where it has none.
      turn: which of the question's turns it is, from 0.
      later: the turns that follow, still to be asked, see `jaxspec.bench.turns`.
    """

    domain: str
    content: Any
    question: Any = None
    turn: int = 0
    later: tuple[str, ...] = ()


class _Text(NamedTuple):
    """What a record asks.

    Attributes:
      text: or token ids. plain: the same as models without a chat template are asked.
      kind: `passage` (to be cut by tokens), `asked` (the public sets, meant for chat models) or
        `given`.
    """

    text: Any
    kind: str
    plain: Any
    question: Any = None
    later: tuple[str, ...] = ()


def read_prompts(
    path: str | os.PathLike, tokenizer, *, limit: int | None = None, chat: bool | None = False
) -> list[Prompt]:
    """Prompts of a .jsonl or .jsonl.gz file, domain by domain in order of appearance.

    A record holds one of
      `prompt`: the prompt (with `task_id`: HumanEval);
      `turns`: a conversation's user turns (Spec-Bench, MT-Bench): the first is the prompt, the
      others are its `later`; `question`: asked as it is in a chat, else as `Question: …`, a line
      break and `Answer:` (GSM8K); `text` with domain `math`: the prompt reaches up to and including
      `Answer:`; any other `text`: it is cut every 2,048 characters, at the next line start; a
      piece's first 96 tokens are a prompt.
    Its domain is its `domain` or `category`, else `humaneval` or `gsm8k` if it is of one of these,
    else the file's name.

    Args:
      path: the file.
      tokenizer: the model's, or None: then only records whose prompt is given as a whole can be
        read.
      limit: prompts per domain, spread evenly over the domain's, a conversation counting as one;
        None takes all.
      chat: pass whole prompts as a user's chat message. None: those of HumanEval, `turns` and
        `question`, where the model has a chat template.

    Raises:
      FileNotFoundError: no such file.
      ValueError: a line is not JSON or holds none of these keys, no prompts at all, or `limit`
        below 1.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"limit is {limit}: give at least 1 prompt per domain")
    path = Path(path)
    domains: dict[str, list[_Text]] = {}
    for where, record in _records(path):
        domain = str(
            record.get("domain")
            or record.get("category")
            or _public_set(record)
            or path.name.split(".")[0]
        )
        domains.setdefault(domain, []).extend(_texts(record, domain, where))
    if not domains:
        raise ValueError(f"{path} holds no prompts")
    return [
        Prompt(domain, _content(text, tokenizer, chat), text.question, 0, text.later)
        for domain, texts in domains.items()
        for text in _spread(texts, limit)
    ]


def uses_template(tokenizer, chat: bool | None) -> bool:
    """Whether `read_prompts` puts the public sets' prompts into the model's chat template."""
    return bool(tokenizer is not None and tokenizer.has_chat_template) if chat is None else chat


def _public_set(record: dict) -> str | None:
    """The set that a record without a domain is of, by its fields."""
    if "prompt" in record and str(record.get("task_id")).startswith("HumanEval/"):
        return "humaneval"
    if "question" in record and "####" in str(record.get("answer")):
        return "gsm8k"
    return None


def _records(path: Path) -> Iterator[tuple[str, dict]]:
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            where = f"{path}, line {number}"
            try:
                record = json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(
                    f"{where} is not JSON ({error.msg}): a prompt file holds one JSON object a line"
                ) from None
            if not isinstance(record, dict):
                raise ValueError(f"{where} is not a JSON object: a prompt file holds one a line")
            yield where, record


def _texts(record: dict, domain: str, where: str) -> list[_Text]:
    """The prompts of a record."""
    name = record.get("question_id", record.get("task_id"))
    # A prompt may be token ids.
    for key, kind in {
        "prompt": str | list,
        "turns": str | list,
        "question": str,
        "text": str,
    }.items():
        if key in record and not (isinstance(record[key], kind) and record[key]):
            raise ValueError(
                f"{where}: {key} is {json.dumps(record[key])}: write a text that is not empty, or drop the line"
            )
    if "prompt" in record:
        return [
            _Text(
                record["prompt"],
                "asked" if "task_id" in record else "given",
                record["prompt"],
                name,
            )
        ]
    if "turns" in record:
        turns = record["turns"]
        if not isinstance(turns, list) or not all(isinstance(turn, str) for turn in turns):
            raise ValueError(
                f"{where}: turns is not a list of texts: write one text for each of the user's turns"
            )
        return [_Text(turns[0], "asked", turns[0], name, tuple(turns[1:]))]
    if "question" in record:
        return [
            _Text(record["question"], "asked", f"Question: {record['question']}\nAnswer:", name)
        ]
    if "text" not in record:
        raise ValueError(
            f"{where} has none of the keys prompt, turns, question, text: rename the one that holds the prompt"
        )
    head, answer, _ = record["text"].partition("\nAnswer:")
    if domain == "math" and answer:
        return [_Text(head + answer, "given", head + answer, name)]
    return [_Text(passage, "passage", passage) for passage in _passages(record["text"])]


def _passages(text: str) -> list[str]:
    starts = {0} | {
        text.find("\n", at) + 1 for at in range(PASSAGE_CHARACTERS, len(text), PASSAGE_CHARACTERS)
    }
    pieces = [text[start : start + PASSAGE_CHARACTERS] for start in sorted(starts)]
    # The last piece may be too short to be gone on from; a short text is a passage all the same.
    return pieces[:1] + [piece for piece in pieces[1:] if len(piece) >= PASSAGE_CHARACTERS // 2]


def _spread(items: Sequence, limit: int | None) -> Sequence:
    if limit is None or limit >= len(items):
        return items
    return [items[i * len(items) // limit] for i in range(limit)]


def _content(text: _Text, tokenizer, chat: bool | None):
    if text.kind == "passage":
        if tokenizer is None:
            raise ValueError(
                "this model has no tokenizer, so texts cannot be cut into prompts: use a model with a tokenizer"
            )
        return list(tokenizer.encode(text.text))[:PROMPT_TOKENS]
    wrapped = uses_template(tokenizer, chat) and (chat or text.kind == "asked")
    return (
        [{"role": "user", "content": text.text}]
        if wrapped and isinstance(text.text, str)
        else text.plain
    )
