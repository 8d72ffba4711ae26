"""Read the files of a tokenizer, and say what is missing or damaged if they cannot be read."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from jaxspec.core.runtime.distribution import is_installed
from jaxspec.io.files.json_files import read_json

FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")
# Packages that read a tokenizer.model, and their modules: of SentencePiece, or with lines of
# tiktoken's ranks.
_SENTENCEPIECE = {"sentencepiece": "sentencepiece", "protobuf": "google.protobuf"}
_TIKTOKEN = {"tiktoken": "tiktoken"}
_RANK = re.compile(rb"[A-Za-z0-9+/=]+ [0-9]+\r?\n")
_BEGIN = b"\n\x03<s>"  # the piece of the begin of text in a SentencePiece model
_POINTER = b"version https://git-lfs."


def import_transformers() -> Any:
    """Import transformers without its advice to install PyTorch, which nothing here needs."""
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    import transformers

    return transformers


def read_tokenizer(directory: str | os.PathLike) -> Any:
    """Read the tokenizer of `transformers` in a folder; code that the folder holds is not run.

    Raises:
      ValueError: it cannot be read. The message says what is missing or damaged.
    """
    auto = import_transformers().AutoTokenizer
    folder = Path(directory)
    options = _prepare_files(folder)
    try:
        return auto.from_pretrained(
            os.fspath(directory), local_files_only=True, trust_remote_code=False, **options
        )
    except Exception as error:  # the libraries raise anything, a bare Exception included
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        advice = _advise(folder, reason)
        raise ValueError(f"{folder}: the tokenizer cannot be read ({reason}); {advice}") from None


def _prepare_files(folder: Path) -> dict[str, Any]:
    """Check the tokenizer's files; return the options that they need.

    Raises:
      ValueError: one is missing, or a package that reads them.
    """
    found = {name: folder / name for name in FILES if (folder / name).is_file()}
    for name, path in found.items():
        with path.open("rb") as file:
            if file.read(len(_POINTER)) == _POINTER:
                raise ValueError(
                    f"{folder}: {name} is a pointer of Git LFS, not the file: run `git lfs pull` "
                    "there"
                )
    if list(found) != ["tokenizer.model"]:
        return {}
    data = found["tokenizer.model"].read_bytes()
    if not data:
        raise ValueError(f"{folder}: tokenizer.model is empty: download it again")
    ranks = _RANK.match(data) is not None
    kind, needed = ("tiktoken's", _TIKTOKEN) if ranks else ("SentencePiece's", _SENTENCEPIECE)
    if missing := [name for name, module in needed.items() if not is_installed(module)]:
        raise ValueError(
            f"{folder}: tokenizer.model is {kind}, and nothing here reads it: "
            f"pip install {' '.join(missing)}, or add the model's tokenizer.json"
        )
    settings = folder / "tokenizer_config.json"
    says = settings.is_file() and "add_bos_token" in read_json(settings)
    # SentencePiece models with this piece were trained with it before each text.
    return {"add_bos_token": True} if _BEGIN in data and not (ranks or says) else {}


def _advise(folder: Path, reason: str) -> str:
    """Say what to do about a tokenizer that cannot be read."""
    if "custom code" in reason:
        return "code in a model's folder is not run: use a model with a tokenizer of a known class"
    if "untagged enum" in reason:
        return "it may need a later version: pip install -U tokenizers transformers"
    if "pip install" in reason:
        return "install that package"
    if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model")):
        return "add the model's tokenizer.json and tokenizer_config.json"
    return "download its files again"
