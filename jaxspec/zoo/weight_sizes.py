"""Sum up the sizes of a checkpoint's weights without reading them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from jaxspec.drafters.registry import records
from jaxspec.io.files.safetensors_files import WeightFiles
from jaxspec.io.files.tensors import count_bytes
from jaxspec.io.files.torch_files import TorchFile, TorchFiles, open_weights
from jaxspec.io.quantised.full_weights import open_full
from jaxspec.io.quantised.registry import find_format
from jaxspec.io.quantised.tensors import QuantisedTensors
from jaxspec.targets.gguf_files.layout import is_gguf, read_gguf
from jaxspec.targets.gguf_files.tensors import GgufWeights


def _gguf_weights(read: GgufWeights) -> dict[str, Any]:
    """Sum up the sizes of a GGUF file's tensors, by block type."""
    dtypes: dict[str, int] = {}
    for name in read.file:
        stored = read.file.stored_dtype(name)
        dtypes[stored] = dtypes.get(stored, 0) + math.prod(read.file.shape(name))
    return {
        "names": set(read),
        "parameters": sum(dtypes.values()),
        "bytes": read.file.size,
        "dtypes": dtypes,
        "packed": 0,
        "coded": 0,
        "quantised": None,
        "tensors": len(read.file),
        "files": [str(read.file.path)],
    }


def sum_sizes(directory: Path, hf: dict[str, Any]) -> dict[str, Any]:
    """Sum up the sizes of a checkpoint's tensors from the headers of all weight files.

    Args:
      directory: of the checkpoint.
      hf: its config.json.

    Returns:
      The entry `weights` of `jaxspec.zoo.inspect.describe_checkpoint`, and `names` of the tensors.
    """
    if is_gguf(directory):
        return _gguf_weights(read_gguf(directory))
    formats = [record.files for record in records() if record.files is not None]
    read = _open(directory, [name for one in formats for name in one.weights])
    names = [] if read is None else list(read)
    mapped = isinstance(read, WeightFiles)
    packed = read.packed if mapped else frozenset()
    dtypes: dict[str, int] = {}
    size = parameters = 0
    for name in names:
        stored = "packed" if name in packed else read.dtype(name)
        count = math.prod(read.shape(name))
        dtypes[stored] = dtypes.get(stored, 0) + count
        size += read.size(name) if mapped else count * count_bytes(stored)
        parameters += count if name in packed or stored.startswith(("F", "BF")) else 0
    full = _find_full(read, hf)
    if full:
        names, parameters = list(full), sum(map(math.prod, full.values()))
    side = dict.fromkeys(name for one in formats for name in one.side_files)
    files = [] if read is None else list(read.files)
    return {
        "names": set(names),
        "parameters": parameters,
        "bytes": size,
        "dtypes": dtypes,
        "packed": len(packed),
        "coded": len(read.coded) if mapped else 0,
        "quantised": find_format(hf)[0].name if full else None,
        "tensors": len(names),
        "files": files + [name for name in side if (directory / name).is_file()],
    }


def _find_full(read: Any, hf: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the full weights that a target's tensors in few bits stand for.

    They are empty if the tensors are full weights themselves, or cannot be read.
    """
    try:
        found = open_full(read, hf)
        quantised = isinstance(found, QuantisedTensors)
        return {name: found.shape(name) for name in found} if quantised else {}
    except ValueError:  # whoever loads them says so
        return {}


def _open(directory: Path, own: list[str]) -> WeightFiles | TorchFiles | TorchFile | None:
    """Open the tensors of a directory; None if it has no weights.

    Args:
      directory: directory of the checkpoint.
      own: names of weight files that only some formats use.
    """
    path = next((directory / name for name in own if (directory / name).is_file()), None)
    if path is not None:
        return WeightFiles.of_file(path) if path.suffix == ".safetensors" else TorchFile(path)
    try:
        return open_weights(directory)
    except FileNotFoundError:
        return None
