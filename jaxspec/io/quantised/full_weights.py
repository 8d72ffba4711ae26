"""Open a checkpoint by the names of its full weights, whatever its format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxspec.io.files.safetensors_files import WeightFiles
from jaxspec.io.files.tensors import Tensors
from jaxspec.io.quantised.registry import find_format
from jaxspec.io.quantised.tensors import QuantisedTensors


def open_full(files: Tensors, hf: Mapping[str, Any]) -> Tensors:
    """Return tensors by the names of full weights.

    Args:
      files: the checkpoint.
      hf: its config.json.

    Raises:
      ValueError: config.json's format is not read, or only of safetensors files.
    """
    found = find_format(hf)
    if found is None:
        return files
    if not isinstance(files, WeightFiles):
        raise ValueError(
            "weights in few bits are read from safetensors files only, not from PyTorch's: use a "
            "checkpoint with model.safetensors"
        )
    return QuantisedTensors(files, *found)
