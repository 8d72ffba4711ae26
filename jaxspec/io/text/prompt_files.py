"""Read prompts from files or the Hugging Face hub, in the forms of public benchmarks.

A source gives the same prompts every time.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from jaxspec.io.text.messages import (
    find_messages_key,
    read_conversation,
    read_instruction,
    split_turns,
)
from jaxspec.io.text.public_forms import (
    DOMAIN_KEYS,
    QUESTION_KEYS,
    Question,
    bad_text,
    find_question,
)
from jaxspec.io.text.record_sources import name_source, read_records

# What figures over the prompts of all domains are reported under.
ALL_DOMAINS = "all"
# A passage is cut from a text at every 2,048 characters; its first tokens are a prompt.
PROMPT_TOKENS = 96
PASSAGE_CHARACTERS = 2048


@dataclasses.dataclass(frozen=True)
class LabelledPrompt:
    """One prompt and its labels in reports.

    Attributes:
      domain: group in reports, such as `math`.
      content: prompt for `jaxspec.decode`: text, token ids or chat messages.
      question: identifier in the file (`question_id`, `task_id`); None without one.
      turn: index of the turn within the question, from 0.
      later: user turns that follow and are still to be asked, see
        `jaxspec.bench.measure.conversations`.
    """

    domain: str
    content: Any
    question: Any = None
    turn: int = 0
    later: tuple[str, ...] = ()


class _Text(NamedTuple):
    """The prompt of a record.

    Attributes:
      text: the prompt, a text, token ids or messages. plain: the prompt for models without a chat
        template.
      kind: `passage` (cut to PROMPT_TOKENS), `asked` (public sets, meant for chat models) or
        `given`.
      question: identifier; None without one.
      later: user turns that follow.
    """

    text: Any
    kind: str
    plain: Any
    question: Any = None
    later: tuple[str, ...] = ()


def read_prompts(
    path: str | os.PathLike,
    tokenizer: Any,
    *,
    limit: int | None = None,
    chat: bool | None = False,
    boxed: bool | None = None,
) -> list[LabelledPrompt]:
    """Read the prompts of a source, see `jaxspec.io.text.record_sources.read_records`.

    They are grouped by domain in order of appearance. A record holds one of these, the first of
    them counts:
      `messages`, `conversations`, `conversation`, `dialog`: a conversation in the forms of
        `jaxspec.io.text.messages`. What precedes its first answer is the prompt, the user's other
        turns are its `later`.
      a question of MATH-500, AIME, GSM8K, MMLU, LiveCodeBench, MBPP or LongBench, see
        `jaxspec.io.text.public_forms`. Outside a chat, one of the first three is written as
        `Question: …`, a line break and `Answer:`.
      `prompt`: the prompt (with `task_id`: HumanEval).
      `turns`: a conversation's user turns (Spec-Bench, MT-Bench). The first is the prompt, the
        others are its `later`.
      `instruction`: the prompt, with what `input` adds (Alpaca).
      `text` with domain `math`: the prompt ends with the first `Answer:`.
      `text` otherwise: it is cut at the line start after every 2,048 characters, and the first 96
        tokens of each piece are a prompt.
    The domain is the record's `domain`, `category`, `subject` or `dataset`. Without them it is the
    benchmark's name if only one has records of this form, else the source's.

    Args:
      path: a file, or the name of a data set on the hub.
      tokenizer: the model's; None reads only records that give the whole prompt.
      limit: prompts per domain, spread evenly over the file; a conversation counts as one. None
        takes all.
      chat: pass whole prompts as a user's chat message. None does so for benchmarks, `turns`,
        `instruction` and conversations if the model has a chat template, but for the tasks that
        LongBench's own code puts into none.
      boxed: see `jaxspec.io.text.public_forms.find_question`.

    Raises:
      FileNotFoundError: the file does not exist.
      ImportError: the source needs the extra `data`.
      ValueError: a line is not JSON or holds none of these keys, the file has no prompts, or
        `limit` is below 1.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"limit is {limit}: give at least 1 prompt per domain")
    domains: dict[str, list[_Text]] = {}
    for where, record in read_records(path):
        question = None if find_messages_key(record) else find_question(record, where, boxed)
        named = next((record[key] for key in DOMAIN_KEYS if record.get(key)), None)
        human = "prompt" in record and str(record.get("task_id")).startswith("HumanEval/")
        form = question.domain if question else "humaneval" if human else None
        domain = str(named or form or name_source(path))
        domains.setdefault(domain, []).extend(_texts(record, question, domain, where))
    if not domains:
        raise ValueError(f"{path} holds no prompts")
    return [
        LabelledPrompt(domain, _content(text, tokenizer, chat), text.question, 0, text.later)
        for domain, texts in domains.items()
        for text in _spread(texts, limit)
    ]


def uses_template(tokenizer: Any, chat: bool | None) -> bool:
    """Say whether `read_prompts` puts the public sets' prompts into the model's chat template."""
    return bool(tokenizer is not None and tokenizer.has_chat_template) if chat is None else chat


def _texts(record: dict, question: Question | None, domain: str, where: str) -> list[_Text]:
    """The prompts of a record."""
    name = next((record[key] for key in QUESTION_KEYS if key in record), None)
    conversation = read_conversation(record, where)
    if conversation is not None:
        messages, later = split_turns(conversation)
        if not any(one["role"] == "user" for one in messages):
            key = find_messages_key(record)
            raise ValueError(f"{where}: {key} begins with an answer: begin with a question")
        return [_Text(messages, "asked", messages[-1]["content"], name, later)]
    if question is not None:
        kind = "asked" if question.chat else "given"
        return [_Text(question.text, kind, question.plain, name)]
    # A prompt may be token ids.
    for key, kind in dict(prompt=str | list, turns=str | list, instruction=str, text=str).items():
        if key in record and not (isinstance(record[key], kind) and record[key]):
            raise bad_text(key, record[key], where)
    if "prompt" in record:
        kind = "asked" if "task_id" in record else "given"
        return [_Text(record["prompt"], kind, record["prompt"], name)]
    if "turns" in record:
        turns = record["turns"]
        if not isinstance(turns, list) or not all(isinstance(turn, str) for turn in turns):
            raise ValueError(
                f"{where}: turns is not a list of texts: write one text for each of the user's "
                "turns"
            )
        return [_Text(turns[0], "asked", turns[0], name, tuple(turns[1:]))]
    if "instruction" in record:
        prompt = read_instruction(record)
        return [_Text(prompt, "asked", prompt, name)]
    if "text" not in record:
        raise ValueError(
            f"{where} has none of the keys messages, prompt, turns, question, problem, "
            "question_content, context with input, instruction, text: rename the one that holds "
            "the prompt"
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
    # The last piece may be too short to continue, but a text that is short as a whole is kept.
    return pieces[:1] + [piece for piece in pieces[1:] if len(piece) >= PASSAGE_CHARACTERS // 2]


def _spread(items: Sequence, limit: int | None) -> Sequence:
    """Choose `limit` items, evenly spaced."""
    if limit is None or limit >= len(items):
        return items
    return [items[i * len(items) // limit] for i in range(limit)]


def _content(text: _Text, tokenizer: Any, chat: bool | None) -> Any:
    if text.kind == "passage":
        if tokenizer is None:
            raise ValueError(
                "this model has no tokenizer, so texts cannot be cut into prompts: use a model "
                "with a tokenizer"
            )
        return list(tokenizer.encode(text.text))[:PROMPT_TOKENS]
    wrapped = uses_template(tokenizer, chat) and (chat or text.kind == "asked")
    if not wrapped:
        return text.plain
    if isinstance(text.text, str):
        return [{"role": "user", "content": text.text}]
    return text.text
