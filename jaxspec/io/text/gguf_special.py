"""Special tokens of a GGUF vocabulary: which begin and end a text, whatever the file leaves out.

Files lack entries or hold wrong ones, so llama.cpp completes them by the kind of tokenizer and by
the texts of tokens. Source: llama.cpp `src/llama-vocab.cpp`, `llama_vocab::impl::load`.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

PREFIX = "tokenizer.ggml."
# Token types of `tokenizer.ggml.token_type`.
NORMAL, CONTROL, USER_DEFINED = 1, 3, 4

# Tokens that end an answer, by their text: of a text, of a turn, or before a tool is called.
END_TEXTS = (
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|calls|>",
    "<|flush|>",
    "<end_of_turn>",
    "<turn|>",
    "<|tool_response>",
    "<end_of_utterance>",
    "<eos>",
    "</s>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<｜end▁of▁sentence｜>",
    "[e~[",
)
# Those that end a text, where no entry names one; and those that begin it.
_EOS_TEXTS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<｜end▁of▁sentence｜>", "[EOS]")
_BOS_TEXTS = ("<|begin_of_text|>", "<s>", "<bos>", "<｜begin▁of▁sentence｜>", "[BOS]")
# Parts of a file to be filled in. Those of the first three kinds end an answer too, one a kind.
_FILL_ENDS = {
    "fim_pad_token_id": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep_token_id": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep_token_id": ("<|file_sep|>",),
}
_FILL_TEXTS = frozenset(
    form.format(part)
    for parts, forms in (
        (
            ("prefix", "suffix", "middle"),
            ("<|fim_{}|>", "<fim-{}>", "<fim_{}>", "<|code_{}|>", "<|{}|>"),
        ),
        (("PRE", "SUF", "MID"), ("<{}>", "▁<{}>")),
        (("begin", "hole", "end"), ("<｜fim▁{}｜>",)),
    )
    for part in parts
    for form in forms
)
# Marks of a message's parts, which are to be seen in the text.
_SHOWN = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")

# Ids where entry and known texts are absent. Byte-level kinds have none here: llama.cpp's 11 is
# Falcon's, and a comma or a letter in other vocabularies.
_DEFAULT_IDS = {"llama": {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}}
# Pre-tokenizers of byte-level vocabularies whose texts begin with a BOS token.
_PRE_WITH_BOS = frozenset(
    ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2")
) | {"tekken", "chameleon"}


class SpecialTokens(NamedTuple):
    """Special tokens of a vocabulary.

    Attributes:
      bos, eos, unknown, padding: ids; None without one.
      ends: ids that end an answer, sorted.
      types: type of each token, corrected by the texts of known tokens.
      add_bos, add_eos: whether a text gets these tokens before and after it.
      faults: what was wrong, one sentence each.
    """

    bos: int | None
    eos: int | None
    unknown: int | None
    padding: int | None
    ends: tuple[int, ...]
    types: tuple[int, ...]
    add_bos: bool
    add_eos: bool
    faults: tuple[str, ...]


def read_special(metadata: Mapping[str, Any]) -> SpecialTokens:
    """Read the special tokens of a file's metadata.

    Ids outside the vocabulary are ignored, with a fault. A file without a vocabulary has the ends
    that its entries name.
    """
    entries = tokenizer_entries(metadata)
    tokens, faults = entries.get("tokens") or [], []
    ids = {text: index for index, text in enumerate(tokens)}
    find = functools.partial(_find_id, entries, len(tokens), faults)

    def known(texts: Iterable[str]) -> int | None:
        return next((ids[text] for text in texts if text in ids), None)

    bos = find("bos_token_id", known(_BOS_TEXTS))
    eos = find("eos_token_id", known(_EOS_TEXTS))
    named = {eos, find("eot_token_id"), find("eom_token_id")}
    named |= {find(name, known(texts)) for name, texts in _FILL_ENDS.items()}
    ends = {ids[text] for text in END_TEXTS if text in ids} | {id for id in named if id is not None}
    types = _list_types(entries, tokens, ids)
    for index in _leave_out(tokens, ends):
        ends.discard(index)
        types[index] = USER_DEFINED if tokens[index] == "<|end|>" else NORMAL
    kind, pre = entries.get("model"), entries.get("pre")
    add_bos = _read_flag(entries, "add_bos_token", kind == "llama" or pre in _PRE_WITH_BOS)
    add_eos = _read_flag(entries, "add_eos_token", False)
    for name, asked, id in (("bos", add_bos, bos), ("eos", add_eos, eos)):
        if asked and id is None:
            faults.append(f"texts should get the {name} token, but no entry names it")
    return SpecialTokens(
        bos,
        eos,
        find("unknown_token_id"),
        find("padding_token_id"),
        tuple(sorted(ends)),
        tuple(types),
        add_bos and bos is not None,
        add_eos and eos is not None,
        tuple(dict.fromkeys(faults)),
    )


def tokenizer_entries(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of the tokenizer by their names without `tokenizer.ggml.`."""
    return {
        name.removeprefix(PREFIX): value
        for name, value in metadata.items()
        if name.startswith(PREFIX)
    }


def _find_id(
    entries: Mapping[str, Any], size: int, faults: list[str], name: str, other: int | None = None
) -> int | None:
    """Return the id of an entry, or else `other`, or else the default of the tokenizer's kind."""
    value = entries.get(name)
    if isinstance(value, int) and not isinstance(value, bool):
        if 0 <= value < size or (value >= 0 and not size):
            return value
        faults.append(f"{name} is {value}, outside the vocabulary of {size}, and is ignored")
    elif value is not None:
        faults.append(f"{name} is no integer, and is ignored")
    if other is not None:
        return other
    default = _DEFAULT_IDS.get(entries.get("model"), {}).get(name)
    return default if default is not None and default < size else None


def _list_types(entries: Mapping[str, Any], tokens: list[str], ids: dict[str, int]) -> list[int]:
    """Return the type of each token; converters store some known ones as normal."""
    given = entries.get("token_type")
    types = list(given[: len(tokens)]) if isinstance(given, list) else []
    types += [NORMAL] * (len(tokens) - len(types))
    for text in ids.keys() & {*END_TEXTS, *_FILL_TEXTS, *itertools.chain(*_FILL_ENDS.values())}:
        types[ids[text]] = CONTROL
    for text in ids.keys() & set(_SHOWN):
        types[ids[text]] = USER_DEFINED
    return types


def _leave_out(tokens: list[str], ends: set[int]) -> list[int]:
    """List ends by text that are none in their vocabulary.

    `<|end|>` ends a message, not an answer, where answers end in a call or a return. Where answers
    end in `<|tool_response>`, `</s>` is a tag of HTML.
    """
    texts = {tokens[index]: index for index in ends if index < len(tokens)}
    calls = bool({"<|call|>", "<|calls|>"} & texts.keys())
    left = []
    if calls and "<|end|>" in texts and {"<|return|>", "<|flush|>"} & texts.keys():
        left.append(texts["<|end|>"])
    if "<|tool_response>" in texts and "</s>" in texts:
        left.append(texts["</s>"])
    return left


def _read_flag(entries: Mapping[str, Any], name: str, default: bool) -> bool:
    value = entries.get(name)
    return bool(value) if isinstance(value, bool | int) else default
