"""Convert text to token ids and back with the tokenizer of a model directory."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxspec.core.runtime.near_miss import choose_one
from jaxspec.io.text.chat_template import find_variables, render_chat
from jaxspec.io.text.messages import replace_surrogates
from jaxspec.io.text.tokenizer_files import FILES, read_tokenizer
from jaxspec.io.text.tool_calls import has_calls
from jaxspec.io.weights.config_entries import read_entries

# Tokens of byte fallback, and their bytes.
_BYTES = {f"<0x{byte:02X}>": byte for byte in range(256)}


class Tokenizer:
    """A thin wrapper of `transformers.AutoTokenizer`, which is imported on first use."""

    def __init__(self, directory: str | os.PathLike):
        self._inner = read_tokenizer(directory)
        self.eos: tuple[int, ...] = _ids(self._inner.eos_token_id)
        self._bytes, self._special = _find_bytes(self._inner)

    def __len__(self) -> int:
        """Count the tokens, the added ones included; the embedding table may have more rows."""
        return len(self._inner)

    def encode(self, text: str, special: bool = True) -> list[int]:
        """Encode a prompt.

        Args:
          special: with the special tokens that the model expects before a text, such as Llama's
            begin-of-text token.
        """
        return list(self._inner.encode(replace_surrogates(text), add_special_tokens=special))

    def name_token(self, token: int) -> str | None:
        """Return the text of a token by its id; None if there is no such token."""
        return self._inner.convert_ids_to_tokens(token) if 0 <= token < 2**31 else None

    def list_ordinary(self) -> dict[int, str]:
        """Return {id: token} of all tokens but those that were added to the vocabulary."""
        added, tokens = self._inner.added_tokens_decoder, self._inner.get_vocab()
        return {i: token for token, i in tokens.items() if i not in added}

    @property
    def info(self) -> dict[str, Any]:
        """Its class, the texts of its special tokens and its chat template; None for what it lacks."""
        inner = self._inner
        names = ("bos_token", "eos_token", "pad_token", "unk_token", "chat_template")
        return {"tokenizer_class": type(inner).__name__} | {
            name: getattr(inner, name) for name in names
        }

    @property
    def has_chat_template(self) -> bool:
        """Whether `chat` can be called."""
        return bool(self._inner.chat_template)

    def chat(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> list[int]:
        """Encode chat messages (`role`, `content`) in the model's template, up to the answer.

        Tool calls may have OpenAI's form or transformers', see `jaxspec.io.text.chat_template`.

        Args:
          add_generation_prompt: end with what begins an answer.
          variables: of the template, such as enable_thinking.
        """
        if not self.has_chat_template:
            raise ValueError("this model has no chat template: pass the prompt as a string")
        if not messages or not all(map(_is_message, messages)):
            raise ValueError("chat messages are a non-empty list of {'role': …, 'content': …}")
        messages, variables = replace_surrogates(list(messages)), replace_surrogates(variables)
        tools = variables.pop("tools", None)
        template = self._inner.get_chat_template(variables.pop("chat_template", None), tools)
        known = {**self._inner.special_tokens_map, **variables}
        options = {"tools": tools, "generation_prompt": add_generation_prompt}
        text = render_chat(template, messages, known, **options).text
        return list(self._inner.encode(text, add_special_tokens=False))

    def check_variables(self, variables: Mapping[str, Any]) -> None:
        """Raise a ValueError if the chat template, if any, does not read one of the variables."""
        if not self.has_chat_template:
            raise ValueError("this model has no chat template, so it has no variables: give none")
        known = find_variables(self._inner.get_chat_template())
        for name in variables:
            if name not in known:
                hint = choose_one(name, known) if known else "it has none; leave it out"
                raise ValueError(f"the model's chat template has no variable {name!r}: {hint}")

    @functools.cached_property
    def special_ids(self) -> dict[str, int]:
        """The tokens that `decode` leaves out: ids by text."""
        inner = self._inner
        special = dict(zip(inner.all_special_tokens, inner.all_special_ids, strict=True))
        added = inner.added_tokens_decoder.items()
        return special | {token.content: id for id, token in added if token.special}

    def decode(self, ids: Iterable[int], special: bool = False) -> str:
        """Decode `ids` to text.

        Invalid UTF-8 becomes U+FFFD as in `bytes.decode`: one for a character that the end cuts. A
        text's first space is left out where the tokenizer adds one to each text.

        Args:
          special: write special tokens out; else they have no text.
        """
        ids = [int(i) for i in ids]
        if not self._bytes.isdisjoint(ids):
            return self._decode_bytes(ids, special)
        options = {"skip_special_tokens": not special, "clean_up_tokenization_spaces": False}
        return self._inner.decode(ids, **options)

    def _decode_bytes(self, ids: list[int], special: bool) -> str:
        """Decode `ids` with valid UTF-8 in place of their bytes.

        The decoders of `tokenizers` make a U+FFFD of each byte of a run that is not valid as a
        whole, those of complete characters included.
        """
        backend, tokens = self._inner.backend_tokenizer, []
        named = (backend.id_to_token(id) for id in ids if special or id not in self._special)
        for are_bytes, run in itertools.groupby(filter(None, named), _BYTES.__contains__):
            if are_bytes:
                text = bytes(map(_BYTES.__getitem__, run)).decode(errors="replace")
                run = (f"<0x{byte:02X}>" for byte in text.encode())
            tokens += run
        return backend.decoder.decode(tokens)


@functools.lru_cache(maxsize=16)
def load_tokenizer(directory: str | os.PathLike) -> Tokenizer | None:
    """Load the tokenizer in `directory`, once per directory.

    Return None if it has none; prompts must then be token ids.
    """
    if not any((Path(directory) / name).is_file() for name in FILES):
        return None
    return Tokenizer(directory)


def _find_bytes(inner: Any) -> tuple[frozenset[int], frozenset[int]]:
    """Find the tokens that are decoded to a byte each, and if there are any, the special tokens."""
    backend = getattr(inner, "backend_tokenizer", None)
    if backend is None or backend.decoder is None or backend.decoder.decode(["<0x41>"]) != "A":
        return frozenset(), frozenset()
    ids = map(backend.token_to_id, _BYTES)
    added = backend.get_added_tokens_decoder().items()
    return (
        frozenset(id for id in ids if id is not None),
        frozenset(id for id, token in added if token.special),
    )


def eos_ids(directory: str | os.PathLike, tokenizer: Tokenizer | None) -> tuple[int, ...]:
    """Collect the ids that end a text, sorted.

    They come from the tokenizer, generation_config.json and config.json together.
    """
    found = set(tokenizer.eos if tokenizer is not None else ())
    for name in ("generation_config.json", "config.json"):
        path = Path(directory) / name
        if path.is_file():
            found.update(_ids(read_entries(path).get("eos_token_id")))
    return tuple(sorted(found))


def _is_message(one: Any) -> bool:
    """Whether something is a chat message; one that calls tools may have no content."""
    if not isinstance(one, dict) or "role" not in one:
        return False
    return "content" in one or has_calls(one)


def _ids(value: int | Sequence[int] | None) -> tuple[int, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else tuple(value)
