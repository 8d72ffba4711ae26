"""Store a checkpoint in fewer bytes, or write it in full again.

A drafter of any layout gets six bits per weight (`jaxspec.io.files.packed`); tensors keep their
names. A target's weights decide the text, so they are coded bit for bit (`jaxspec.io.files.coded`).
Other engines only read full weights.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from jaxspec.drafters.borrowed_head import ENTRY, LEFT_OUT, TARGET
from jaxspec.drafters.files import borrowed_tensors, find_config
from jaxspec.drafters.registry import record_of
from jaxspec.io.files.atomic import staging, write_json
from jaxspec.io.files.json_files import read_json
from jaxspec.io.files.packed import STORAGE, pack
from jaxspec.io.files.safetensors_files import WeightFiles, write_safetensors
from jaxspec.io.files.torch_files import open_weights
from jaxspec.io.weights.config_entries import read_entries
from jaxspec.io.weights.draft_vocab import MAPPING, read_ids
from jaxspec.targets.families.hf_config import target_config
from jaxspec.targets.weights import HEAD, stored_name
from jaxspec.zoo.places import open_target, resolve_drafter, resolve_model


def pack_checkpoint(
    source: str | Path, destination: str | Path, target: str | Path | None = None
) -> Path:
    """Write `source` to the directory `destination`: a drafter packed, a target coded.

    Args:
      source: directory or hub id, or the name of a drafter that ships with `target`. Its weights
        must be in one safetensors file.
      destination: directory to create; it must not hold a model yet.
      target: the model that a drafter serves. If it is given, rows of the target's own output
        projection are left out, see `jaxspec.drafters.borrowed_head`, and so are copies of the
        target's tensors that a layout stores and nothing reads.

    Returns:
      `destination`.

    Raises:
      FileExistsError: `destination` holds a config.json.
      ValueError: the source is packed already, or has no safetensors file.
    """
    directory = _directory(source, target)
    if not is_full(directory):
        raise ValueError(f"{directory} is packed already: copy it, or unpack it first")
    if _is_target(directory):
        return _rewrite(directory, Path(destination), dict, {}, coded=True)
    entries, left_out = {"storage": STORAGE}, set()
    if target is not None:
        left_out |= _copies(directory)
        if _copies_head(directory, resolve_model(target)):
            entries[ENTRY] = TARGET
            left_out |= set(LEFT_OUT)

    def pack_rest(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return pack({name: tensor for name, tensor in tensors.items() if name not in left_out})

    return _rewrite(directory, Path(destination), pack_rest, entries, coded=True)


def unpack_checkpoint(
    source: str | Path, destination: str | Path, target: str | Path | None = None
) -> Path:
    """Invert `pack_checkpoint`; write packed matrices in bfloat16, which other engines read.

    Raises:
      FileExistsError: `destination` holds a config.json.
      ValueError: the source is not packed.
    """
    directory = _directory(source, target)
    if is_full(directory):
        raise ValueError(f"{directory} is not packed: its weights are stored as floats already")
    if not is_packed(directory):
        return _rewrite(directory, Path(destination), dict, {})
    return _rewrite(directory, Path(destination), shorten_unpacked, {"storage": None})


def shorten_unpacked(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the tensors of a packed drafter with its matrices in bfloat16.

    They are read as float32, vectors as they were stored.
    """
    return {
        name: x.astype(ml_dtypes.bfloat16) if x.ndim > 1 and x.dtype == np.float32 else x
        for name, x in tensors.items()
    }


def is_packed(directory: Path) -> bool:
    """Whether the config.json in `directory` says that its weights are packed."""
    return read_entries(directory / "config.json").get("jaxspec", {}).get("storage") == STORAGE


def is_full(directory: Path) -> bool:
    """Whether other engines can read the weights in `directory`: none is packed or coded."""
    files = [WeightFiles.of_file(path) for path in sorted(directory.glob("*.safetensors"))]
    return not is_packed(directory) and not any(read.coded for read in files)


def _copies(directory: Path) -> set[str]:
    """Names of the target's tensors that the layout saves with a drafter; empty for other files."""
    entries = read_entries(directory / "config.json")
    return set(borrowed_tensors(find_config(directory), entries))


def _copies_head(directory: Path, model: Path) -> bool:
    """Whether a block drafter's output projection consists of rows of the target's."""
    if record_of(find_config(directory)).name not in ("dflash", "jetspec", "dspark"):
        return False
    tensors, config = open_weights(directory), target_config(read_entries(model / "config.json"))
    if HEAD not in tensors or not any(name in tensors for name in MAPPING):
        return False
    head = np.asarray(tensors[HEAD], np.float32)
    ids = read_ids(tensors, len(head), config.vocab_size)
    rows = np.asarray(open_target(model)[stored_name(config, HEAD)], np.float32)[ids]
    # The file may hold them in a shorter dtype.
    return head.shape == rows.shape and np.allclose(head, rows, rtol=2**-7, atol=1e-6)


def _directory(source: str | Path, target: str | Path | None) -> Path:
    return resolve_model(source) if target is None else resolve_drafter(source, target)


def _is_target(directory: Path) -> bool:
    """Whether a folder holds a target.

    A small language model is a drafter if its config.json names its target.
    """
    hf = read_entries(directory / "config.json")
    named = (hf.get("architectures") or [""])[0]
    return named.endswith("ForCausalLM") and "draft_vocab_size" not in hf and "jaxspec" not in hf


def _rewrite(
    directory: Path,
    destination: Path,
    change: Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]],
    entries: dict[str, Any],
    coded: bool = False,
) -> Path:
    """Copy a checkpoint with changed tensors and config.

    `entries` go into config.json's `jaxspec` object; None removes an entry. Without entries the
    config stays as it is.
    """
    if (destination / "config.json").exists():
        raise FileExistsError(f"{destination} holds a model already: choose another directory")
    paths = sorted(directory.glob("*.safetensors"))
    if len(paths) != 1:
        raise ValueError(
            f"{directory} has {len(paths)} safetensors files: give a model whose weights are in one"
        )
    hf = read_json(directory / "config.json")
    own = (hf.get("jaxspec") or {}) | entries
    if entries:
        hf["jaxspec"] = {name: value for name, value in own.items() if value is not None}
    with staging(destination) as folder:
        for path in directory.iterdir():
            if path.is_file() and path not in paths:
                shutil.copyfile(path, folder / path.name)
        tensors = change(dict(WeightFiles.of_file(paths[0])))
        write_safetensors(folder / paths[0].name, tensors, coded=coded)
        write_json(folder / "config.json", hf)
    return destination
