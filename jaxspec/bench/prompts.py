"""Prompt files: JSON lines in the forms that public benchmarks use, turned into prompts the same way every time."""

from __future__ import annotations

import dataclasses
import gzip
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

PROMPT_TOKENS = 96
PASSAGE_CHARACTERS = 2048


@dataclasses.dataclass(frozen=True)
class Prompt:
    """One prompt: `content` is what `jaxspec.decode` takes (text, token ids or chat messages)."""

    domain: str
    content: Any


def read_prompts(path: str | os.PathLike, tokenizer, *, limit: int | None = None, chat: bool = False) -> list[Prompt]:
    """Prompts of a .jsonl or .jsonl.gz file, domain by domain in order of appearance.

    A record holds one of
      `prompt`: the prompt (HumanEval);
      `turns`: the first turn is the prompt (Spec-Bench, MT-Bench);
      `question`: the prompt is `Question: …`, a line break and `Answer:` (GSM8K);
      `text` with domain `math`: the prompt reaches up to and including `Answer:`;
      any other `text`: it is cut every 2,048 characters, at the next line start; a piece's first 96 tokens are a prompt.
    Its domain is its `domain` or `category`, else the file's name.

    Args:
      path: the file.
      tokenizer: the model's, or None: then only records whose prompt is given as a whole can be read.
      limit: prompts per domain, spread evenly over the domain's; None takes all.
      chat: pass whole prompts as a user's chat message.

    Raises:
      FileNotFoundError: no such file.
      ValueError: a line is not JSON or holds none of these keys, no prompts at all, or `limit` below 1.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"limit is {limit}: give at least 1 prompt per domain")
    path = Path(path)
    domains: dict[str, list[tuple[str, bool]]] = {}
    for where, record in _records(path):
        domain = str(record.get("domain") or record.get("category") or path.name.split(".")[0])
        domains.setdefault(domain, []).extend(_texts(record, domain, where))
    if not domains:
        raise ValueError(f"{path} holds no prompts")
    return [
        Prompt(domain, _content(text, is_passage, tokenizer, chat))
        for domain, texts in domains.items()
        for text, is_passage in _spread(texts, limit)
    ]


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
                raise ValueError(f"{where} is not JSON ({error.msg}): a prompt file holds one JSON object a line") from None
            if not isinstance(record, dict):
                raise ValueError(f"{where} is not a JSON object: a prompt file holds one a line")
            yield where, record


def _texts(record: dict, domain: str, where: str) -> list[tuple[str, bool]]:
    """(text, whether it is a passage to be cut by tokens) for each prompt of a record."""
    if "prompt" in record:
        return [(record["prompt"], False)]
    if record.get("turns"):
        return [(record["turns"][0], False)]
    if "question" in record:
        return [(f"Question: {record['question']}\nAnswer:", False)]
    if "text" not in record:
        raise ValueError(f"{where} has none of the keys prompt, turns, question, text: rename the one that holds the prompt")
    head, answer, _ = record["text"].partition("\nAnswer:")
    if domain == "math" and answer:
        return [(head + answer, False)]
    return [(passage, True) for passage in _passages(record["text"])]


def _passages(text: str) -> list[str]:
    starts = {0} | {text.find("\n", at) + 1 for at in range(PASSAGE_CHARACTERS, len(text), PASSAGE_CHARACTERS)}
    pieces = [text[start : start + PASSAGE_CHARACTERS] for start in sorted(starts)]
    # The last piece may be too short to be gone on from; a short text is a passage all the same.
    return pieces[:1] + [piece for piece in pieces[1:] if len(piece) >= PASSAGE_CHARACTERS // 2]


def _spread(items: Sequence, limit: int | None) -> Sequence:
    if limit is None or limit >= len(items):
        return items
    return [items[i * len(items) // limit] for i in range(limit)]


def _content(text: str, is_passage: bool, tokenizer, chat: bool):
    if is_passage:
        if tokenizer is None:
            raise ValueError("this model has no tokenizer, so texts cannot be cut into prompts: use a model with a tokenizer")
        return list(tokenizer.encode(text))[:PROMPT_TOKENS]
    return [{"role": "user", "content": text}] if chat else text
