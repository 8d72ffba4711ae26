"""The tensors `d2t` and `t2d` of a reduced draft vocabulary (EAGLE-3, speculators schema).

`d2t` int64 [D] holds offsets: draft token i is the target's token i + d2t[i]. `t2d` bool [V] marks
the same tokens.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from jaxspec.io.weight_map import WeightMismatch

MAPPING = ("d2t", "t2d")


def read_ids(read: Mapping[str, np.ndarray], size: int, vocab_size: int) -> np.ndarray:
    """Read the token ids int32 [size] of the draft vocabulary, in ascending order.

    Args:
      read: tensors by name, including `d2t` and `t2d`.
      size: D, the number of tokens that can be drafted.
      vocab_size: V, the number of tokens of the target.

    Raises:
      WeightMismatch: `d2t` or `t2d` is missing.
      ValueError: shape or dtype is wrong, ids are out of range or do not ascend, or the two tensors
        disagree.
    """
    missing = [name for name in MAPPING if name not in read]
    if missing:
        raise WeightMismatch(missing, [], {})
    offsets, marked = read["d2t"], read["t2d"]
    for name, tensor, dtype, shape in (
        ("d2t", offsets, "int64", (size,)),
        ("t2d", marked, "bool", (vocab_size,)),
    ):
        if tensor.dtype.name != dtype or tensor.shape != shape:
            found, wanted = f"{tensor.dtype.name} {list(tensor.shape)}", f"{dtype} {list(shape)}"
            raise ValueError(
                f"{name} is {found}, but config.json says {wanted}: use the files of one checkpoint"
            )
    ids = np.arange(size) + offsets
    beyond = np.flatnonzero((ids < 0) | (ids >= vocab_size))
    if beyond.size:
        raise ValueError(
            f"d2t maps draft token {beyond[0]} to {ids[beyond[0]]}, outside the target's "
            f"{vocab_size} tokens: it must hold offsets, target id = i + d2t[i]"
        )
    falls = np.flatnonzero(np.diff(ids) <= 0)
    if falls.size:
        first, second = ids[falls[0]], ids[falls[0] + 1]
        raise ValueError(
            f"d2t maps draft tokens {falls[0]} and {falls[0] + 1} to {first} and {second}, "
            "but ids must ascend: it must hold offsets, target id = i + d2t[i]"
        )
    differ = np.flatnonzero(marked != _marks(ids, vocab_size))
    if differ.size:
        raise ValueError(
            f"t2d and d2t disagree about {differ.size} tokens, first {differ[0]}: "
            "use the files of one checkpoint"
        )
    return ids.astype(np.int32)


def mapping_tensors(ids: np.ndarray, vocab_size: int) -> dict[str, np.ndarray]:
    """Make `d2t` and `t2d` from ascending token ids int [D]."""
    ids = np.asarray(ids, np.int64)
    return {"d2t": ids - np.arange(len(ids)), "t2d": _marks(ids, vocab_size)}


def _marks(ids: np.ndarray, vocab_size: int) -> np.ndarray:
    marks = np.zeros(vocab_size, bool)
    marks[ids] = True
    return marks
