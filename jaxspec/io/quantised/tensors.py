"""The tensors of a checkpoint in few bits, under the names of the full weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxspec.io.files.safetensors_files import WeightFiles
from jaxspec.io.files.tensors import FLOAT_DTYPES, BlockReader, RowReader, Tensors
from jaxspec.io.quantised.matrix import Groups, Matrix, Opened
from jaxspec.io.quantised.module import Format, Module


class QuantisedTensors(Tensors):
    """Tensors by the names of full weights. One in few bits is read as float32, some rows at a
    time.

    Args:
      files: the checkpoint.
      format: its format.
      settings: its `quantization_config`.

    Raises:
      ValueError: a weight of integers or of one byte has no scales.
    """

    packed: frozenset[str] = frozenset()

    def __init__(self, files: WeightFiles, format: Format, settings: Mapping[str, Any]):
        self.files, self.format, self._settings = files, format, settings
        stems = {
            name.removesuffix(mark)
            for name in files
            for mark in format.marks
            if name.endswith(mark)
        }
        inner = {stem + suffix for stem in stems for suffix in format.reads}
        plain = (
            name
            for name in files
            if name not in inner and name.rpartition(".")[2] not in format.unread
        )
        self._modules = {stem + format.becomes: Module(files, stem) for stem in stems}
        self._home = dict.fromkeys(plain) | self._modules
        self._matrices: dict[str, Matrix] = {}
        for name, module in self._home.items():
            if module is None and name.endswith(".weight"):
                self._check_plain(name)

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._modules:
            return self.files[name]
        shape = self.shape(name)
        return self.row_reader(name)(0, shape[0], np.empty(4 * math.prod(shape), np.uint8))

    def shape(self, name: str) -> tuple[int, ...]:
        return self._matrix(name).shape if name in self._modules else self.files.shape(name)

    def dtype(self, name: str) -> str:
        return "F32" if name in self._modules else self.files.dtype(name)

    def row_reader(self, name: str) -> RowReader:
        return self.open(name).rows if name in self._modules else self.files.row_reader(name)

    def block_reader(self, name: str) -> BlockReader:
        if name not in self._modules:
            return self.files.block_reader(name)
        read, row = self.row_reader(name), 4 * math.prod(self.shape(name)[1:])

        def block(start: int, stop: int, columns: slice, memory: np.ndarray) -> np.ndarray:
            return read(start, stop, np.empty((stop - start) * row, np.uint8))[:, columns]

        return block

    def open(self, name: str) -> Opened:
        """Read the scales of a tensor in few bits."""
        return self._matrix(name).open()

    def kind(self, name: str) -> str | None:
        """Return `int8` or `fp8` if a tensor has these values with a scale per output."""
        return self._matrix(name).kind if name in self._modules else None

    def groups(self, name: str) -> Groups | None:
        """Return the groups of inputs of a tensor that consists of codes of four bits."""
        return self._matrix(name).groups if name in self._modules else None

    @property
    def quantised(self) -> frozenset[str]:
        """Names of the tensors in few bits."""
        return frozenset(self._modules)

    def is_idle(self, name: str) -> bool:
        """Whether a bias is one of the zeros that writers of the format add."""
        weight = name.removesuffix("bias") + "weight"
        idle = self.format.idle_biases and name.endswith(".bias") and weight in self._modules
        return idle and not np.any(self.files[name])

    def stored_size(self) -> int:
        """Return the bytes of all tensors in the files."""
        return sum(map(self.files.size, self.files))

    def _matrix(self, name: str) -> Matrix:
        if name not in self._matrices:
            self._matrices[name] = self.format.open(self._settings, self._modules[name])
        return self._matrices[name]

    def _check_plain(self, name: str) -> None:
        stored = self.files.stored_dtype(name)
        if stored not in FLOAT_DTYPES:
            stem = name.removesuffix(".weight")
            scales = " or ".join(stem + mark for mark in self.format.marks)
            raise ValueError(
                f"{self.files.directory}: {name} is stored as {stored}, without {scales}: "
                "download the checkpoint again"
            )
