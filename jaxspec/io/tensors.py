"""Base class of readers of weight files: map names to tensors, which are read on access."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np


class Tensors(Mapping[str, np.ndarray]):
    """Tensors by name. Listing names reads no tensor.

    Attributes:
      _home: mapping with the names as keys. Subclasses fill it, and define indexing, `shape` and
        `dtype`.
    """

    _home: Mapping[str, Any]

    def __contains__(self, name: object) -> bool:  # the inherited one would read the tensor
        return name in self._home

    def __iter__(self) -> Iterator[str]:
        return iter(self._home)

    def __len__(self) -> int:
        return len(self._home)


class RenamedTensors(Tensors):
    """A view of tensors under other names.

    Args:
      read: the tensors.
      names: {new name: name in `read`}; other tensors are left out.
    """

    def __init__(self, read: Tensors, names: Mapping[str, str]):
        self._read, self._home = read, names

    def __getitem__(self, name: str) -> np.ndarray:
        return self._read[self._home[name]]

    def shape(self, name: str) -> tuple[int, ...]:
        return self._read.shape(self._home[name])

    def dtype(self, name: str) -> str:
        return self._read.dtype(self._home[name])
