"""Small tokenizers of the published kinds, and their text computed from the bytes alone."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from tokenizers import Tokenizer as Fast
from tokenizers import decoders, models, normalizers, pre_tokenizers

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
SPECIAL = ("<s>", "</s>")


def save(directory: Path, fast: Fast, **settings) -> Path:
    """Write a tokenizer as models' folders hold it; `<s>` and `</s>` are special."""
    fast.add_special_tokens(list(SPECIAL))
    directory.mkdir(parents=True)
    fast.save(str(directory / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>", **settings}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    return directory


def byte_level(words: Iterable[bytes] = ()) -> Fast:
    """Byte-level BPE as GPT-2's: the 256 bytes, then `words`; nothing is merged."""
    # One character for each byte: the printable ones stand for themselves.
    fast = Fast(
        models.BPE(vocab={spell(word): i for i, word in enumerate(_bytes(words))}, merges=[])
    )
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    return fast


def _bytes(words: Iterable[bytes]) -> list[bytes]:
    return [bytes([byte]) for byte in range(256)] + list(words)


def spell(word: bytes) -> str:
    """Write bytes in GPT-2's alphabet."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in shown]
    alphabet = dict(zip(shown, shown, strict=True)) | {b: 256 + i for i, b in enumerate(rest)}
    return "".join(chr(alphabet[byte]) for byte in word)


def pieces(kind: str, words: Sequence[str] | dict[str, int]) -> Fast:
    """Pieces of SentencePiece with byte fallback; nothing is merged.

    Args:
      words: come after `<unk>` and the 256 bytes; or all pieces and their ids.
      kind: `llama` leaves out a text's first space, `gemma` keeps it; `first`, `always` and `never`
        are schemes of Metaspace, of which the last keeps it.
    """
    if not isinstance(words, dict):
        words = {token: i for i, token in enumerate(["<unk>", *BYTES, *words])}
    fast = Fast(models.BPE(words, [], unk_token="<unk>", byte_fallback=True))
    fallback, space = decoders.ByteFallback(), decoders.Replace("▁", " ")
    if kind in ("llama", "gemma"):
        before = [normalizers.Prepend("▁")] * (kind == "llama")
        fast.normalizer = normalizers.Sequence([*before, normalizers.Replace(" ", "▁")])
        strip = [decoders.Strip(" ", 1, 0)] * (kind == "llama")
        fast.decoder = decoders.Sequence([space, fallback, decoders.Fuse(), *strip])
    else:
        scheme = {"prepend_scheme": kind, "split": False}
        fast.pre_tokenizer = pre_tokenizers.Metaspace("▁", **scheme)
        fast.decoder = decoders.Sequence([fallback, decoders.Metaspace("▁", **scheme)])
    return fast


def place(kind: str, names: dict[int, str], size: int) -> Fast:
    """Pieces as `pieces` makes them, at the places that `names` gives; token 7 elsewhere is `?7`."""
    taken = {name: token for token, name in names.items() if token < size}
    by_name = {f"?{token}": token for token in range(size) if token not in names} | taken
    return pieces(kind, by_name)
