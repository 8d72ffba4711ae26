"""Base class of readers of weight files: map names to tensors, which are read on access."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np

# (start, stop, memory) -> rows start to stop of a tensor, in its stored dtype. Rows are indices of
# the first axis. The result may use `memory`, a uint8 array of at least as many bytes, or be an
# array of its own. One thread at a time may call it.
RowReader: TypeAlias = Callable[[int, int, np.ndarray], np.ndarray]


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

    def row_reader(self, name: str) -> RowReader:
        """Return a function that reads some rows of a tensor.

        Unless a subclass can read rows alone, this reads the whole tensor.
        """
        return _slice_rows(self[name])


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

    def row_reader(self, name: str) -> RowReader:
        return self._read.row_reader(self._home[name])


def find_row_reader(read: Mapping[str, np.ndarray], name: str) -> RowReader:
    """Return a function that reads rows of a tensor of `read`, `Tensors` or a dict of arrays."""
    return read.row_reader(name) if isinstance(read, Tensors) else _slice_rows(read[name])


def _slice_rows(tensor: np.ndarray) -> RowReader:
    return lambda start, stop, memory: tensor[start:stop]
