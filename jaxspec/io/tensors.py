"""What all readers of weight files share: a mapping from names to tensors that are read when they
are asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np


class Tensors(Mapping[str, np.ndarray]):
    """Tensors by name; looking at names reads nothing.

    Attributes:
      _home: whose keys are the names; subclasses fill it, and define indexing, `shape` and `dtype`.
    """

    _home: Mapping[str, Any]

    def __contains__(self, name: object) -> bool:  # the inherited one would read the tensor
        return name in self._home

    def __iter__(self) -> Iterator[str]:
        return iter(self._home)

    def __len__(self) -> int:
        return len(self._home)
