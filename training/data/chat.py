"""Render records for a model with its own chat template, and find the characters to train on.

Training uses the assistant's answers and the tokens that end them, each in the context in which
decoding would produce it: after `messages[:i]` rendered with the generation prompt. If a template
marks answers itself (`{% generation %}`), its marks are used.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxspec.io.text.chat_template import Rendered, render_chat
from jaxspec.io.text.tokenizer_files import read_tokenizer

from .documents import DataError
from .samples import DataRecord

# Tokens that end a turn, in addition to the tokenizer's end of text: those of Qwen and ChatML,
# Llama 3, Gemma and Phi.
_TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<|end|>")
_MARKS = re.compile(r"\{%-?\s*generation\s*-?%\}")
# Llama 3 templates print today's date, but data must not depend on the day of a run.
_DATE = "26 Jul 2024"


@dataclasses.dataclass(frozen=True)
class ChatFormat:
    """A tokenizer, and how to write conversations for it.

    Attributes:
      tokenizer: of `transformers`, with a `tokenizers` backend; None if all records are token ids.
      template: Jinja source, or None.
      options: variables of the template, for example `enable_thinking`.
      raw_prompts: prompt and response are plain text even if there is a template.
    """

    tokenizer: Any
    template: str | None = None
    options: dict = dataclasses.field(default_factory=dict)
    raw_prompts: bool = False

    @functools.cached_property
    def marked(self) -> bool:
        """Whether the template marks the assistant's text itself."""
        return bool(self.template and _MARKS.search(self.template))

    @functools.cached_property
    def ends(self) -> tuple[str, ...]:
        """Texts of the tokens that end a turn."""
        vocabulary = self.tokenizer.get_vocab()
        own = [self.tokenizer.eos_token] if self.tokenizer.eos_token else []
        return tuple(dict.fromkeys(own + [end for end in _TURN_ENDS if end in vocabulary]))

    @property
    def fingerprint(self) -> str | None:
        """Hash of the template, 12 hexadecimal digits; None without a template."""
        return hashlib.sha256(self.template.encode()).hexdigest()[:12] if self.template else None


class Piece(NamedTuple):
    """Text that is tokenised as a whole.

    Attributes:
      text: the text.
      spans: ranges of characters to train on; None for all of them.
      special: add the tokens that the model expects before a text (Llama's begin of text).
    """

    text: str
    spans: tuple[tuple[int, int], ...] | None = ()
    special: bool = False


def make_format(
    tokenizer,
    chat_template: Path | None = None,
    enable_thinking: bool | None = None,
    raw_prompts: bool = False,
) -> ChatFormat:
    """Make the format in which records are written for a model.

    Args:
      tokenizer: a directory that holds one, a name as for `jaxspec.load`, a tokenizer of
        `transformers`, or None.
      chat_template: file with a Jinja template, instead of the tokenizer's own.
      enable_thinking: passed to templates that know it (Qwen3). None leaves it to the template.
      raw_prompts: see `ChatFormat`.

    Raises:
      DataError: the directory has no tokenizer, the tokenizer has no `tokenizers` backend, or the
        template file does not exist.
      FileNotFoundError: no model has this name.
    """
    if tokenizer is None:
        return ChatFormat(None)
    if isinstance(tokenizer, str | os.PathLike):
        tokenizer = _read_tokenizer(tokenizer)
    if not hasattr(tokenizer, "backend_tokenizer"):
        raise DataError(
            f"{type(tokenizer).__name__} has no tokenizer.json: use the model's fast tokenizer"
        )
    template = None
    if chat_template is not None:
        if not Path(chat_template).is_file():
            raise DataError(
                f"no chat template at {chat_template}: give a file with a Jinja template"
            )
        template = Path(chat_template).read_text(encoding="utf-8")
    elif tokenizer.chat_template:
        template = tokenizer.get_chat_template()
    options = {} if enable_thinking is None else {"enable_thinking": enable_thinking}
    return ChatFormat(tokenizer, template, options, raw_prompts)


def _read_tokenizer(source):
    from jaxspec.zoo.places import resolve_model

    directory = resolve_model(source)
    try:
        return read_tokenizer(directory)
    except ValueError as error:
        raise DataError(str(error)) from None


def encode_messages(
    messages: Sequence[dict], chat: ChatFormat, tools: list[dict] | None = None, place: str = ""
) -> list[int]:
    """Encode chat messages, ready for the assistant's answer."""
    text = render_messages(messages, chat, True, tools, place)
    return chat.tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids


def render_messages(
    messages: Sequence[dict],
    chat: ChatFormat,
    generation_prompt: bool,
    tools: list[dict] | None = None,
    place: str = "",
) -> str:
    """Render chat messages in the template.

    Args:
      messages: chat messages.
      chat: the format.
      generation_prompt: end with the start of an assistant's answer.
      tools: JSON schemas of tools, or None.
      place: file and line, for error messages.

    Raises:
      DataError: there is no template, or it refuses the messages.
    """
    return _render(messages, chat, generation_prompt, tools, place).text


def _render(messages, chat, generation_prompt, tools, place, marks: bool = False) -> Rendered:
    """Render chat messages, with the ranges of characters inside generation marks."""
    from jinja2 import TemplateError

    if chat.template is None:
        raise DataError(
            f"{place}: the tokenizer has no chat template: pass the file of one as chat_template"
        )
    variables = {"date_string": _DATE, **chat.tokenizer.special_tokens_map, **chat.options}
    try:
        return render_chat(
            chat.template,
            messages,
            variables,
            tools=tools,
            generation_prompt=generation_prompt,
            marks=marks,
        )
    except (TemplateError, TypeError, ValueError, AttributeError, LookupError) as error:
        reason = " ".join(str(error).split())
        raise DataError(
            f"{place}: the chat template cannot render these messages ({reason})"
        ) from None


def split_record(
    record: DataRecord, chat: ChatFormat
) -> Iterator[tuple[tuple[Piece, ...], list[str]]]:
    """Split a record into the pieces of each sample that it gives.

    A template that drops the reasoning of earlier turns (Qwen3) shows an answer in full only while
    it is the last one. The conversation then gives one sample per such answer, so that all answers
    are trained on in the context that decoding sees.

    Yields:
      (pieces, notes). The notes are the places of answers that do not begin after the generation
      prompt.

    Raises:
      DataError: the record cannot be rendered, or has no answer.
    """
    if chat.tokenizer is None:
        raise DataError(
            f"{record.place}: this model has no tokenizer: only records of tokens can be read"
        )
    if record.text is not None:
        yield (Piece(record.text, None, special=True),), []
    elif record.messages is not None:
        yield from _conversation(record.messages, record, chat)
    elif record.response is None:
        raise DataError(
            f"{record.place}: a prompt without a response: "
            "let the target answer it, see `jaxspec regenerate`"
        )
    elif isinstance(record.prompt, str) and (chat.template is None or chat.raw_prompts):
        yield (Piece(record.prompt, (), special=True), Piece(record.response, None)), []
    else:
        prompt = (
            [{"role": "user", "content": record.prompt}]
            if isinstance(record.prompt, str)
            else record.prompt
        )
        yield from _conversation(
            [*prompt, {"role": "assistant", "content": record.response}], record, chat
        )


def _conversation(
    messages: list[dict], record: DataRecord, chat: ChatFormat
) -> Iterator[tuple[tuple[Piece, ...], list[str]]]:
    turns = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    if not turns:
        raise DataError(
            f"{record.place}: the conversation has no message of the assistant to train on: "
            "leave the record out"
        )
    if chat.marked:
        text, spans = _render(
            messages[: turns[-1] + 1], chat, False, record.tools, record.place, marks=True
        )
        yield (Piece(text, tuple(_with_end(text, span, chat.ends) for span in spans)),), []
        return
    # A greeting before the first question answers nothing, and some templates cannot prompt for it.
    answers = [
        _answer(messages, turn, record, chat) for turn in turns if turn > 0 or len(turns) == 1
    ]
    hosts: list[tuple[str, list, list]] = []
    for text, span, notes in reversed(answers):
        if not (hosts and hosts[-1][0].startswith(text)):
            hosts.append((text, [], []))
        hosts[-1][1].insert(0, span)
        hosts[-1][2].extend(notes)
    for text, spans, notes in reversed(hosts):
        yield (Piece(text, tuple(spans)),), notes


def _answer(
    messages: list[dict], turn: int, record: DataRecord, chat: ChatFormat
) -> tuple[str, tuple[int, int], list[str]]:
    """Render the conversation up to the end of message `turn`.

    Returns:
      The text, the range of its characters that the model writes, and notes.
    """
    place = f"{record.place}: message {turn + 1}"
    before = render_messages(messages[:turn], chat, True, record.tools, place)
    after = render_messages(messages[: turn + 1], chat, False, record.tools, place)
    start = len(os.path.commonprefix([before, after]))
    notes = [] if start == len(before) else [place]
    if notes and start < len(render_messages(messages[:turn], chat, False, record.tools, place)):
        raise DataError(
            f"{place}: the chat template changes the text before this answer once it is answered: "
            "use another chat template"
        )
    tail = after[start:]
    ends = [tail.rfind(end) + len(end) for end in chat.ends if end in tail]
    stop = start + (max(ends) if ends else len(tail))
    return after[:stop], (start, stop), notes


def _with_end(text: str, span: tuple[int, int], ends: Sequence[str]) -> tuple[int, int]:
    """Extend a span by the token that ends the turn, if the template's marks leave it out."""
    start, stop = span
    return start, stop + max((len(end) for end in ends if text.startswith(end, stop)), default=0)
