"""Base class of readers of weight files: maps names to tensors, which are read on access."""

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
