"""Weights of Medusa heads, to and from the variables of `Medusa`.

The authors' layout has medusa_lm_head.safetensors or .pt. Head i's residual block j is
`{i}.{j}.linear`; its output projection is `{i}.{n}` after n blocks. Heads that share the target's
projection, like those of the first training script, have none.

vLLM's layout is read but not written. It has `blocks.{i}.layers.{j}` and `lm_heads.{i}` in
model.safetensors, optionally with the prefix `medusa_heads.`. If the heads share a projection, the
file also holds a copy of the target's, which is not read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxspec.drafters.format import Format, json_writer
from jaxspec.drafters.medusa import hf_config
from jaxspec.drafters.medusa.network import MedusaConfig
from jaxspec.io.files.safetensors_files import WEIGHTS as MODEL
from jaxspec.io.files.safetensors_files import WeightFiles
from jaxspec.io.files.tensors import RowReader, Tensors
from jaxspec.io.files.torch_files import TorchFile
from jaxspec.io.weights.load_tree import read_tree
from jaxspec.io.weights.weight_map import Leaf, check_fit, write_tree

WEIGHTS = "medusa_lm_head.safetensors"
TORCH_WEIGHTS = "medusa_lm_head.pt"
# vLLM's names.
_BLOCK = re.compile(r"(?:medusa_heads\.)?blocks\.(\d+)\.layers\.(\d+)\.(weight|bias)")
_HEAD = re.compile(r"(?:medusa_heads\.)?lm_heads\.(\d+)\.weight")


def read(directory: str | os.PathLike, config: MedusaConfig, dtype: str) -> dict[str, Any]:
    """Read the variables of `Medusa(config)`, in `dtype`.

    Raises:
      FileNotFoundError: there are no weights.
      WeightMismatch: tensors are missing, unexpected, misshapen or no floats; reports all of them.
      ValueError: files are unsafe or damaged, or weights hold NaN.
    """
    return read_tree(leaves(config), _open(Path(directory), config), dtype, _is_copy)


def check(directory: str | os.PathLike, config: MedusaConfig) -> None:
    """Raise what `read` would, but read no weights."""
    check_fit(leaves(config), _open(Path(directory), config), _is_copy)


def tensors(variables: Mapping[str, Any], config: MedusaConfig) -> dict[str, np.ndarray]:
    """Return tensors by the authors' names, in the variables' dtype."""
    return write_tree(leaves(config), variables)


def leaves(config: MedusaConfig) -> list[Leaf]:
    """List the leaves of all weights."""
    heads, width = range(config.heads), config.hidden_size
    table = []
    for j in range(config.layers):
        for name, part, shape in (("kernel", "weight", (width, width)), ("bias", "bias", (width,))):
            names = tuple((f"{i}.{j}.linear.{part}",) for i in heads)
            table.append(
                Leaf(
                    (f"block_{j}", name), names, (shape,), transpose=name == "kernel", stacked=True
                )
            )
    if config.own_projection:
        names = tuple((f"{i}.{config.layers}.weight",) for i in heads)
        table.append(
            Leaf(("lm_head",), names, ((config.vocab_size, width),), transpose=True, stacked=True)
        )
    return table


class _Vllm(Tensors):
    """A view of vLLM's tensors by the authors' names; blocks without a bias get one of zeros."""

    def __init__(self, read: Tensors, layers: int):
        self._read, self._home = read, {}
        for name in read:
            block, head = _BLOCK.fullmatch(name), _HEAD.fullmatch(name)
            ours = (
                f"{block[1]}.{block[2]}.linear.{block[3]}"
                if block
                else f"{head[1]}.{layers}.weight"
                if head
                else name
            )
            self._home[ours] = name
            if block and block[3] == "weight":
                self._home.setdefault(f"{block[1]}.{block[2]}.linear.bias", name)

    def __getitem__(self, name: str) -> np.ndarray:
        tensor = self._read[self._home[name]]
        return np.zeros(len(tensor), tensor.dtype) if self._made(name) else tensor

    def shape(self, name: str) -> tuple[int, ...]:
        shape = self._read.shape(self._home[name])
        return shape[:1] if self._made(name) else shape

    def dtype(self, name: str) -> str:
        return self._read.dtype(self._home[name])

    def row_reader(self, name: str) -> RowReader:
        made = self._made(name)
        return super().row_reader(name) if made else self._read.row_reader(self._home[name])

    def _made(self, name: str) -> bool:
        return name.endswith(".bias") and not self._home[name].endswith(".bias")


def _is_copy(name: str) -> bool:
    """Say whether a tensor is the copy of the target's projection in vLLM's layout."""
    return name.removeprefix("medusa_heads.") == "lm_head.weight"


def _open(directory: Path, config: MedusaConfig) -> Tensors:
    """Open the tensors of a directory by the authors' names; safetensors come first."""
    found = next((name for name in (WEIGHTS, TORCH_WEIGHTS) if (directory / name).is_file()), None)
    if found is None and (directory / MODEL).is_file():
        return _Vllm(WeightFiles(directory), config.layers)
    if found is None:
        raise FileNotFoundError(
            f"{directory} has no Medusa heads: expected {WEIGHTS}, {TORCH_WEIGHTS} or vLLM's "
            f"{MODEL}"
        )
    return (
        TorchFile(directory / found)
        if found == TORCH_WEIGHTS
        else WeightFiles.of_file(directory / found)
    )


FORMAT = Format(
    hf_config.matches,
    hf_config.config_from_hf,
    hf_config.for_target,
    read,
    check,
    json_writer(hf_config.config_to_hf, tensors, WEIGHTS),
    recognise=hf_config.recognise,
    layout=hf_config.layout,
    default_layers=hf_config.default_layers,
    weights=(WEIGHTS, TORCH_WEIGHTS),
)
