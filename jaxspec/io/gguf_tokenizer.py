"""Build a fast tokenizer from the metadata of a GGUF file.

GGUF holds the vocabulary, merges and special tokens under `tokenizer.ggml.*`, and the name of the
pre-tokenizer instead of its rule. Sources: llama.cpp `src/llama-vocab.cpp` for the rules by name.
"""

from __future__ import annotations

from typing import Any

from jaxspec.io.gguf_files import GgufFile

# Token types of `tokenizer.ggml.token_type`.
_CONTROL, _USER_DEFINED, _BYTE = 3, 4, 6

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# How text is split before merges, by `tokenizer.ggml.pre`: rules applied one after the other.
_SPLITS: dict[str, tuple[str, ...]] = {
    "default": (_GPT2,),
    "gpt-2": (_GPT2,),
    "smollm": (r"\p{N}", _GPT2),
    "llama-bpe": (_LLAMA3,),
    "llama3": (_LLAMA3,),
    "llama-v3": (_LLAMA3,),
    "smaug-bpe": (_LLAMA3,),
    "qwen2": (_LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}"),),
}


def build_tokenizer(file: GgufFile) -> Any:
    """Build a `transformers.PreTrainedTokenizerFast` with special tokens and chat template.

    Raises:
      ValueError: the file has no tokenizer, or one of a kind that is not supported.
    """
    from transformers import PreTrainedTokenizerFast

    entries = {
        name.removeprefix("tokenizer.ggml."): value
        for name, value in file.metadata.items()
        if name.startswith("tokenizer.ggml.")
    }
    build = {"gpt2": _byte_level, "llama": _sentencepiece}.get(entries.get("model"))
    if build is None or not isinstance(entries.get("tokens"), list):
        raise ValueError(
            f"{file.path}: a tokenizer of kind {entries.get('model')!r} is not supported (supported: "
            "'gpt2', 'llama'): load the model from a Hugging Face directory"
        )
    inner = build(entries, str(file.path))
    tokens = entries["tokens"]
    _add_special(inner, entries)
    _add_ends(inner, entries)
    named = {
        "bos_token": "bos_token_id",
        "eos_token": "eos_token_id",
        "unk_token": "unknown_token_id",
        "pad_token": "padding_token_id",
    }
    special = {
        name: tokens[entries[key]]
        for name, key in named.items()
        if isinstance(entries.get(key), int) and entries[key] < len(tokens)
    }
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        chat_template=file.metadata.get("tokenizer.chat_template"),
        **special,
    )


def end_ids(file: GgufFile) -> tuple[int, ...]:
    """Return the ids that end a text: end of text, of turn and of message, sorted."""
    names = ("eos_token_id", "eot_token_id", "eom_token_id")
    found = (file.metadata.get(f"tokenizer.ggml.{name}") for name in names)
    return tuple(sorted({int(one) for one in found if isinstance(one, int)}))


def _byte_level(entries: dict[str, Any], path: str) -> Any:
    """Build a byte-level BPE tokenizer."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    name = entries.get("pre", "default")
    if name not in _SPLITS:
        raise ValueError(
            f"{path}: pre-tokenizer {name!r} is not supported (supported: {', '.join(_SPLITS)}): "
            "load the model from a Hugging Face directory"
        )
    vocabulary = {token: index for index, token in enumerate(entries["tokens"])}
    merges = [tuple(merge.split(" ", 1)) for merge in entries.get("merges", ())]
    # Llama 3 takes a whole word that is in the vocabulary before it tries merges.
    whole = _SPLITS[name] == (_LLAMA3,)
    inner = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=whole))
    splits = [pre_tokenizers.Split(Regex(rule), "isolated") for rule in _SPLITS[name]]
    space = bool(entries.get("add_space_prefix", False))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=space, use_regex=False)
    inner.pre_tokenizer = pre_tokenizers.Sequence([*splits, byte_level])
    inner.decoder = decoders.ByteLevel()
    if name == "qwen2":
        from tokenizers import normalizers

        inner.normalizer = normalizers.NFC()
    return inner


def _sentencepiece(entries: dict[str, Any], path: str) -> Any:
    """Build a BPE tokenizer of SentencePiece pieces with byte fallback, as Llama 2 has."""
    from tokenizers import Tokenizer, decoders, models, normalizers

    tokens = entries["tokens"]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    unknown = tokens[entries.get("unknown_token_id", 0)]
    inner = Tokenizer(
        models.BPE(
            vocabulary,
            _find_merges(tokens, entries, path),
            unk_token=unknown,
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
    if not isinstance(scores, list) or len(scores) != len(tokens):
        raise ValueError(f"{path}: a 'llama' tokenizer needs a score per token: download it again")
    known = dict(zip(tokens, scores, strict=True))
    found = []
    for token, score in known.items():
        halves = [(token[:i], token[i:]) for i in range(1, len(token))]
        inside = [(a, b) for a, b in halves if a in known and b in known]
        found += [(score, a, b) for a, b in inside]
    order = {token: index for index, token in enumerate(tokens)}
    found.sort(key=lambda one: (-one[0], order[one[1]], order[one[2]]))
    return [(a, b) for _, a, b in found]


def _add_special(inner: Any, entries: dict[str, Any]) -> None:
    """Mark control tokens and tokens of the author's as whole words that are never split."""
    from tokenizers import AddedToken

    types = entries.get("token_type") or []
    pairs = list(zip(entries["tokens"], types, strict=False))
    control = [token for token, kind in pairs if kind == _CONTROL]
    inner.add_special_tokens([AddedToken(token, normalized=False) for token in control])
    own = [token for token, kind in pairs if kind == _USER_DEFINED]
    inner.add_tokens([AddedToken(token, normalized=False) for token in own])


def _add_ends(inner: Any, entries: dict[str, Any]) -> None:
    """Begin texts with BOS and end them with EOS where the file asks for it."""
    from tokenizers.processors import TemplateProcessing

    default = entries.get("model") == "llama"
    begins = entries.get("add_bos_token", default) and "bos_token_id" in entries
    ends = entries.get("add_eos_token", False) and "eos_token_id" in entries
    if not (begins or ends):
        return
    tokens = entries["tokens"]
    ids = [entries[key] for key, used in (("bos_token_id", begins), ("eos_token_id", ends)) if used]
    before = f"{tokens[ids[0]]} " if begins else ""
    after = f" {tokens[ids[-1]]}" if ends else ""
    inner.post_processor = TemplateProcessing(
        single=f"{before}$A{after}",
        pair=f"{before}$A{after} {before}$B{after}".replace("$B", "$B:1"),
        special_tokens=[(tokens[one], one) for one in ids],
    )
