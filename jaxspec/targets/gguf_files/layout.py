"""Lay out a GGUF file as a folder that readers of Hugging Face's layout understand.

The folder lies in the user's cache and holds config.json and tokenizer. So only whoever reads
weights needs to know of GGUF. Weights are not copied.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from jaxspec.io.files.atomic import staging, write_json
from jaxspec.io.files.gguf_files import GgufFile
from jaxspec.io.files.json_files import read_json
from jaxspec.io.text.gguf_tokenizer import build_tokenizer
from jaxspec.io.user_cache import list_caches, warn_unwritten
from jaxspec.targets.gguf_files.config import read_gguf_entries
from jaxspec.targets.gguf_files.tensors import GgufWeights

_ORIGIN = "jaxspec_gguf.json"
# Raise this when `_write_layout` changes what it writes.
_LAYOUT = 2


def lay_out_gguf(path: Path) -> Path:
    """Write config.json and tokenizer of a GGUF file to the user's cache.

    They are written once for each state of the file.

    Returns:
      The folder, named like the file.

    Raises:
      ValueError: the file is damaged or not supported.
    """
    path, about = path.resolve(), path.stat()
    state = f"{_LAYOUT} {path} {about.st_size} {about.st_mtime_ns}"
    key = hashlib.sha256(state.encode()).hexdigest()[:16]
    file, failed = None, OSError("no folder for cached files can be written")
    for cache in list_caches("gguf", key):
        folder = cache / path.stem
        if (folder / _ORIGIN).is_file():
            return folder
        file = file or GgufFile(path)
        try:
            # Another process may write the same at the same time.
            with staging(folder, last=_ORIGIN) as partial:
                _write_layout(file, partial)
            return folder
        except OSError as error:
            failed = error
            warn_unwritten(error)
    raise OSError(
        f"{failed}: config.json and tokenizer of {path.name} must be written somewhere: "
        "set JAXSPEC_CACHE to a folder with room"
    )


def _write_layout(file: GgufFile, folder: Path) -> None:
    entries = read_gguf_entries(file)
    # llama.cpp's names of models without a vocabulary.
    if file.metadata.get("tokenizer.ggml.model", "none") not in ("none", "no_vocab"):
        build_tokenizer(file).save_pretrained(folder)
    for name, content in (("config.json", entries), (_ORIGIN, {"gguf": str(file.path)})):
        write_json(folder / name, content)


def is_gguf(model: Path) -> bool:
    """Whether the weights of the model in a folder from `resolve_model` are in a GGUF file."""
    return (model / _ORIGIN).is_file()


def find_gguf_file(model: Path) -> Path:
    """Return the GGUF file of the model in a folder for which `is_gguf` holds."""
    return Path(read_json(model / _ORIGIN)["gguf"])


def read_gguf(model: Path) -> GgufWeights:
    """Open the GGUF file of the model in a folder for which `is_gguf` holds."""
    return GgufWeights(GgufFile(find_gguf_file(model)))
