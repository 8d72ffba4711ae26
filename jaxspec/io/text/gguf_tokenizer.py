"""Build a fast tokenizer from the metadata of a GGUF file.

GGUF holds the vocabulary, merges and special tokens under `tokenizer.ggml.*`, and the name of the
pre-tokenizer instead of its rule. Sources: llama.cpp `src/llama-vocab.cpp` for the rules by name.
"""

from __future__ import annotations

import logging
from typing import Any

from jaxspec.io.files.gguf_files import GgufFile
from jaxspec.io.text.gguf_special import (
    CONTROL,
    NORMAL,
    USER_DEFINED,
    SpecialTokens,
    read_special,
    tokenizer_entries,
)
from jaxspec.io.text.tokenizer_files import import_transformers

log = logging.getLogger("jaxspec")

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_DIGITS = (r"\p{N}", _GPT2)
_QWEN2 = (_LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}"),)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SHORTENED = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_SHORTENED}"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_SHORTENED}"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# How text is split before merges, by `tokenizer.ggml.pre`: rules applied one after the other.
_SPLITS: dict[str, tuple[str, ...]] = {
    "default": (r"[\p{P}$+<=>^~|]+", _GPT2, r"\p{N}+", r"[0-9]{3}"),
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "jais", "exaone4", "mellum"), (_GPT2,)),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell"), _DIGITS),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "lfm2"), (_LLAMA3,)),
    **dict.fromkeys(("smaug-bpe", "dbrx", "glm4", "chatglm-bpe"), (_LLAMA3,)),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez", "stablelm2", "hunyuan"), _QWEN2),
    **dict.fromkeys(("gpt-4o", "llama4"), (_GPT4O,)),
    "tekken": (_TEKKEN,),
}
# These take a whole word that is in the vocabulary before they try merges.
_WHOLE_WORDS = {"llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "lfm2", "tekken"}


def build_tokenizer(file: GgufFile) -> Any:
    """Build a `transformers.PreTrainedTokenizerFast` with special tokens and chat template.

    What is absent or wrong and can be completed is logged.

    Raises:
      ValueError: the file has no tokenizer, one of a kind that is not supported, or one that lacks
        a part.
    """
    entries = tokenizer_entries(file.metadata)
    build = {"gpt2": _byte_level, "llama": _sentencepiece}.get(entries.get("model"))
    if build is None or not isinstance(entries.get("tokens"), list):
        raise ValueError(
            f"{file.path}: a tokenizer of kind {entries.get('model')!r} is not supported "
            "(supported: 'gpt2', 'llama'): load the model from a Hugging Face directory"
        )
    special = read_special(file.metadata)
    for fault in special.faults:
        log.warning("%s: %s", file.path, fault)
    entries["tokens"] = tokens = _check_tokens(entries, str(file.path))
    inner = build(entries, special, str(file.path))
    _add_special(inner, tokens, special)
    _add_ends(inner, tokens, special)
    named = {
        "bos_token": special.bos,
        "eos_token": special.eos,
        "unk_token": special.unknown,
        "pad_token": special.padding,
    }
    return import_transformers().PreTrainedTokenizerFast(
        tokenizer_object=inner,
        chat_template=_read_template(file.metadata),
        **{name: tokens[id] for name, id in named.items() if id is not None},
    )


def end_ids(file: GgufFile) -> tuple[int, ...]:
    """Return the ids that end an answer: of text, turn and message, as llama.cpp finds them."""
    return read_special(file.metadata).ends


def _check_tokens(entries: dict[str, Any], path: str) -> list[str]:
    """Return the vocabulary with a text for each token.

    Raises:
      ValueError: two tokens have one text, or a list that belongs to the tokens is too short.
    """
    tokens = [text or f"[EMPTY_{index}]" for index, text in enumerate(entries["tokens"])]
    if len(set(tokens)) < len(tokens):
        seen: set[str] = set()
        twice = next(one for one in tokens if one in seen or seen.add(one))
        raise ValueError(f"{path}: its vocabulary holds {twice!r} twice: convert the model again")
    for name in ("scores", "token_type"):
        found = entries.get(name)
        if isinstance(found, list) and len(found) < len(tokens):
            raise ValueError(
                f"{path}: its vocabulary has {len(tokens)} tokens, but {name} {len(found)} values: "
                "convert the model again"
            )
    return tokens


def _read_template(metadata: dict[str, Any]) -> str | None:
    """Return the chat template; a file may hold several under names of their own alone."""
    names = ("tokenizer.chat_template", "tokenizer.chat_template.default")
    found = (metadata.get(name) for name in names)
    return next((one for one in found if isinstance(one, str) and one.strip()), None)


def _byte_level(entries: dict[str, Any], special: SpecialTokens, path: str) -> Any:
    """Build a byte-level BPE tokenizer."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    name = entries.get("pre") or ""
    if not name:
        log.warning(
            "%s does not say how text is split into words (tokenizer.ggml.pre): llama.cpp's "
            "default is taken, and answers may be worse; convert the model again",
            path,
        )
        name = "default"
    if name not in _SPLITS:
        raise ValueError(
            f"{path}: pre-tokenizer {name!r} is not supported (supported: {', '.join(_SPLITS)}): "
            "load the model from a Hugging Face directory"
        )
    tokens = entries["tokens"]
    merges = [_split_merge(merge) for merge in entries.get("merges") or ()]
    words = (text for text, kind in zip(tokens, special.types, strict=True) if kind == NORMAL)
    if not merges and any(len(word) > 1 for word in words):
        log.warning("%s has no merges: text is split into bytes; convert the model again", path)
    vocabulary = {token: index for index, token in enumerate(tokens)}
    inner = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=name in _WHOLE_WORDS))
    splits = [pre_tokenizers.Split(Regex(rule), "isolated") for rule in _SPLITS[name]]
    space = bool(entries.get("add_space_prefix", False))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=space, use_regex=False)
    inner.pre_tokenizer = pre_tokenizers.Sequence([*splits, byte_level])
    inner.decoder = decoders.ByteLevel()
    if name == "qwen2":
        inner.normalizer = normalizers.NFC()
    return inner


def _split_merge(merge: str) -> tuple[str, str]:
    """Split a merge into its halves; the first may begin with a space."""
    at = merge.find(" ", 1)
    return merge[:at], merge[at + 1 :]


def _sentencepiece(entries: dict[str, Any], special: SpecialTokens, path: str) -> Any:
    """Build a BPE tokenizer of SentencePiece pieces with byte fallback, as Llama 2 has."""
    from tokenizers import Tokenizer, decoders, models, normalizers

    tokens = entries["tokens"]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    inner = Tokenizer(
        models.BPE(
            vocabulary,
            _find_merges(tokens, entries, path),
            unk_token=None if special.unknown is None else tokens[special.unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    space = bool(entries.get("add_space_prefix", True))
    inner.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁")] * space + [normalizers.Replace(" ", "▁")]
    )
    inner.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
        + [decoders.Strip(" ", 1, 0)] * space
    )
    return inner


def _find_merges(tokens: list[str], entries: dict[str, Any], path: str) -> list[tuple[str, str]]:
    """Recover SentencePiece's merges: every split of a piece into two pieces, best score first."""
    scores = entries.get("scores")
    if not isinstance(scores, list):
        raise ValueError(
            f"{path}: a 'llama' tokenizer needs a score per token (tokenizer.ggml.scores), without "
            "which text is split wrongly: convert the model again"
        )
    known = dict(zip(tokens, scores, strict=False))
    found = []
    for token, score in known.items():
        halves = [(token[:i], token[i:]) for i in range(1, len(token))]
        inside = [(a, b) for a, b in halves if a in known and b in known]
        found += [(score, a, b) for a, b in inside]
    order = {token: index for index, token in enumerate(tokens)}
    found.sort(key=lambda one: (-one[0], order[one[1]], order[one[2]]))
    return [(a, b) for _, a, b in found]


def _add_special(inner: Any, tokens: list[str], special: SpecialTokens) -> None:
    """Mark control tokens and tokens of the author's as whole words that are never split."""
    from tokenizers import AddedToken

    pairs = list(zip(tokens, special.types, strict=True))
    control = [token for token, kind in pairs if kind == CONTROL]
    inner.add_special_tokens([AddedToken(token, normalized=False) for token in control])
    own = [token for token, kind in pairs if kind == USER_DEFINED]
    inner.add_tokens([AddedToken(token, normalized=False) for token in own])


def _add_ends(inner: Any, tokens: list[str], special: SpecialTokens) -> None:
    """Begin texts with BOS and end them with EOS where file or kind ask for it."""
    from tokenizers.processors import TemplateProcessing

    ids = [special.bos] * special.add_bos + [special.eos] * special.add_eos
    if not ids:
        return
    before = f"{tokens[special.bos]} " if special.add_bos else ""
    after = f" {tokens[special.eos]}" if special.add_eos else ""
    inner.post_processor = TemplateProcessing(
        single=f"{before}$A{after}",
        pair=f"{before}$A{after} {before}$B{after}".replace("$B", "$B:1"),
        special_tokens=[(tokens[one], one) for one in dict.fromkeys(ids)],
    )
