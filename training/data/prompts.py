"""Make prompts for a target from the records that drafters are trained on, and batch them."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from .chat import ChatFormat, encode_messages
from .documents import DataError
from .samples import DataRecord

ANSWER = "Answer:"


class PromptToAnswer(NamedTuple):
    """A prompt for the target to answer.

    Attributes:
      id: `<domain>-<number>`, which does not depend on other prompts.
      domain: domain of the record, or None.
      content: text or chat messages.
      ids: token ids of the content, in the chat template if there is one.
      temperature: sampling temperature of the answer.
    """

    id: str
    domain: str | None
    content: str | list[dict]
    ids: list[int]
    temperature: float


def make_prompts(
    records: Sequence[DataRecord],
    chat: ChatFormat,
    *,
    longest: int,
    limit: int | None = None,
    domains: dict[str, float] | None = None,
    prompt_tokens: tuple[int, int] = (32, 112),
    temperatures: Sequence[float] = (0.0,),
    seed: int = 0,
) -> list[PromptToAnswer]:
    """Make prompts from `records`, those of each domain in a random order.

    A conversation is cut before its first answer; a `prompt` is taken as it is. A `text` of the
    domain `math` is cut after `Answer:`. From other texts a passage is taken that begins at the
    start of a line. With a `limit`, long texts give several passages.

    Args:
      records: from `training.data.samples.read_records`.
      chat: the model's format.
      longest: maximum tokens of a prompt; longer ones are skipped.
      limit: maximum number of prompts; fewer if the records do not give more. None takes one per
        record.
      domains: share of `limit` of each domain; None gives all domains equal shares.
      prompt_tokens: shortest and longest passage, drawn uniformly; the second also limits `math`
        questions.
      temperatures: cycled over the prompts of a domain.
      seed: seed of order, passages and lengths.

    Raises:
      DataError: there is no usable prompt, a share has no limit or no domain, or a range is wrong.
    """
    low, high = prompt_tokens
    if longest < 1:
        raise DataError("max_new_tokens leaves no room for a prompt: give fewer")
    if not 1 <= low <= high <= longest:
        raise DataError(
            f"prompt_tokens is {low} to {high}: give a range within 1 to {longest}, "
            "the longest prompt that fits"
        )
    groups: dict[str, list[DataRecord]] = {}
    for record in records:
        groups.setdefault(record.domain or "", []).append(record)
    prompts = []
    for name, number in _counts(sorted(groups), limit, domains).items():
        made = _domain_prompts(
            groups[name],
            chat,
            (low, high),
            longest,
            (seed, zlib.crc32(name.encode())),
            limit is not None,
        )
        for index, content, ids in itertools.islice(made, number):
            temperature = float(temperatures[index % len(temperatures)])
            prompts.append(
                PromptToAnswer(
                    f"{name or 'prompt'}-{index}", name or None, content, ids, temperature
                )
            )
    if not prompts:
        raise DataError(
            f"no prompts in these records: all are longer than {longest} tokens, "
            f"or texts shorter than {low}: change --prompt-tokens"
        )
    return prompts


def group_prompts(
    prompts: Sequence[PromptToAnswer], size: int, seed: int
) -> list[list[PromptToAnswer]]:
    """Group prompts into batches of at most `size` prompts of one temperature.

    Prompts of a batch mostly have one padded length. Each length is compiled once. Prompts that do
    not fill a batch of their length join the next longer one. Domains stay together as far as
    possible, because a batch runs until its last answer ends. The order of the batches is random.
    """
    batches = []
    for temperature in sorted({prompt.temperature for prompt in prompts}):
        chosen = sorted(
            (p for p in prompts if p.temperature == temperature),
            key=lambda p: (_padded(len(p.ids)), p.domain or ""),
        )
        rest: list[PromptToAnswer] = []
        for width in sorted({_padded(len(prompt.ids)) for prompt in chosen}):
            rest += [prompt for prompt in chosen if _padded(len(prompt.ids)) == width]
            while len(rest) >= size:
                batches.append(rest[:size])
                rest = rest[size:]
        if rest:
            batches.append(rest)
    return [batches[i] for i in np.random.default_rng(seed).permutation(len(batches))]


def find_unfinished(
    prompts: Sequence[PromptToAnswer], done: set[str], size: int, seed: int
) -> list[list[PromptToAnswer]]:
    """Return the batches of `group_prompts` that hold a prompt that is not in `done`.

    A run that was killed continues with exactly the batches that were left, including the one that
    it was writing, so that it ends with the file of an uninterrupted run. If more prompts were
    added, those that are left are grouped anew.
    """
    batches = group_prompts(prompts, size, seed)
    begun = [
        batch for batch in batches if 0 < sum(prompt.id in done for prompt in batch) < len(batch)
    ]
    if len(begun) > 1:
        return group_prompts([prompt for prompt in prompts if prompt.id not in done], size, seed)
    return [batch for batch in batches if not all(prompt.id in done for prompt in batch)]


def _counts(
    names: list[str], limit: int | None, domains: dict[str, float] | None
) -> dict[str, int | None]:
    """Compute the number of prompts per domain; they add up to `limit`."""
    if limit is None:
        if domains:
            raise DataError(
                "shares of domains need a limit: say how many prompts there should be in all"
            )
        return dict.fromkeys(names)
    if limit < 1:
        raise DataError(f"limit is {limit}: give at least 1 prompt")
    shares = domains or dict.fromkeys(names, 1.0)
    for name, share in shares.items():
        if name not in names:
            raise DataError(
                f"the prompts have no domain {name!r}: they have {', '.join(map(repr, names))}"
            )
        if not share > 0:
            raise DataError(f"the share of domain {name!r} is {share}: give a number above 0")
    ends = np.rint(np.cumsum([0.0, *shares.values()]) / sum(shares.values()) * limit).astype(int)
    return dict(zip(shares, np.diff(ends).tolist(), strict=True))


def _domain_prompts(
    records: list[DataRecord],
    chat: ChatFormat,
    prompt_tokens: tuple[int, int],
    longest: int,
    seed: tuple[int, int],
    repeat: bool,
) -> Iterator[tuple[int, str | list[dict], list[int]]]:
    """Yield (number, content, ids): all records once in a random order.

    With `repeat`, continue with the records that give further passages.
    """
    order = np.random.default_rng(seed).permutation(len(records))
    numbers = itertools.count()
    for visit in itertools.count():
        found = False
        for index in order:
            number = next(numbers)
            made = _prompt(
                records[index], chat, prompt_tokens, visit, np.random.default_rng((*seed, number))
            )
            if made is not None and 0 < len(made[1]) <= longest:
                found = True
                yield number, *made
        if not (repeat and found):
            return


def _prompt(
    record: DataRecord,
    chat: ChatFormat,
    prompt_tokens: tuple[int, int],
    visit: int,
    generator: np.random.Generator,
):
    """Make (content, ids) of the prompt that `record` gives on this visit, or None."""
    if record.text is not None and not (record.domain == "math" and ANSWER in record.text):
        return _passage(record.text, chat, prompt_tokens, visit, generator)
    if visit:
        return None
    if record.text is not None:
        content = record.text[: record.text.index(ANSWER) + len(ANSWER)]
        ids = _ids(content, chat)
        return (content, ids) if len(ids) <= prompt_tokens[1] else None
    if record.tokens is not None:
        ids = record.tokens[: record.prompt_length]
        return chat.tokenizer.decode(ids), ids
    content = record.prompt if record.messages is None else _question(record)
    if isinstance(content, str) and (chat.template is None or chat.raw_prompts):
        return content, _ids(content, chat)
    messages = [{"role": "user", "content": content}] if isinstance(content, str) else content
    return messages, encode_messages(messages, chat, record.tools, record.place)


def _question(record: DataRecord) -> list[dict]:
    """Return the messages before the first answer; a greeting of the assistant is no answer."""
    roles = [message["role"] for message in record.messages]
    if "user" not in roles:
        raise DataError(
            f"{record.place}: the conversation has no message of the user to answer: "
            "leave the record out"
        )
    first = roles.index("user")
    return record.messages[
        : roles.index("assistant", first) if "assistant" in roles[first:] else None
    ]


def _passage(
    text: str,
    chat: ChatFormat,
    prompt_tokens: tuple[int, int],
    visit: int,
    generator: np.random.Generator,
):
    low, high = prompt_tokens
    # No tokenizer averages more than eight characters per token. A text that is not longer than
    # `high` times that has one passage.
    reach = 8 * high
    if visit and len(text) <= reach:
        return None
    start = text.rfind("\n", 0, int(generator.integers(max(len(text) - reach, 1)))) + 1
    size = int(generator.integers(low, high + 1))
    ids = _ids(text[start : start + reach], chat)[:size]
    return (chat.tokenizer.decode(ids, skip_special_tokens=True), ids) if len(ids) >= low else None


def _ids(text: str, chat: ChatFormat) -> list[int]:
    return chat.tokenizer.backend_tokenizer.encode(text, add_special_tokens=True).ids


def _padded(length: int) -> int:
    """Return the length to which `jaxspec.decode` pads prompts.

    It is a power of two from 32 to 512, then a multiple of 512.
    """
    return max(32, 1 << (length - 1).bit_length()) if length <= 512 else -(-length // 512) * 512
