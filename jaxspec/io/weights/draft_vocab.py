"""The tensors `d2t` and `t2d` of a reduced draft vocabulary (EAGLE-3, speculators schema).

`d2t` int64 [D] holds offsets: draft token i is the target's token i + d2t[i]. `t2d` bool [V] marks
the same tokens. Each follows from the other, so exporters leave one out, and they differ in the
integer type. NVIDIA's lists draft tokens by how frequent they are, all others by their ids.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from jaxspec.io.files.tensors import Tensors
from jaxspec.io.weights.weight_map import WeightMismatch

MAPPING = ("d2t", "t2d")
# Tensors with a row for every token that can be drafted, and with one for every token.
_ROWS = ("lm_head.weight", "markov_head.markov_w2.weight")
_TABLES = (
    "t2d",
    "embed_tokens.weight",
    "markov_head.markov_w1.weight",
    "candidate_selector.predecessor_codebook",
    "candidate_selector.successor_codebook",
)


def read_ids(read: Mapping[str, np.ndarray], size: int, vocab_size: int) -> np.ndarray:
    """Read the token ids int32 [size] of the draft vocabulary, in the order of the file.

    Args:
      read: tensors by name, including `d2t` or `t2d` or both, of any integer type.
      size: D, the number of tokens that can be drafted.
      vocab_size: V, the number of tokens of the target.

    Raises:
      WeightMismatch: `d2t` and `t2d` are missing.
      ValueError: shape or dtype is wrong, ids are out of range or occur twice, or the two tensors
        disagree.
    """
    if not any(name in read for name in MAPPING):
        raise WeightMismatch(list(MAPPING), [], {})
    marked = _read_marks(read["t2d"], vocab_size) if "t2d" in read else None
    if "d2t" not in read:
        ids = np.flatnonzero(marked)
        if len(ids) != size:
            raise ValueError(
                f"t2d marks {len(ids)} tokens, and config.json says that {size} can be drafted: "
                "use the files of one checkpoint"
            )
        return ids.astype(np.int32)
    _check("d2t", read["d2t"], "iu", "int64", size)
    ids = np.arange(size) + read["d2t"].astype(np.int64)
    _check_ids(ids, vocab_size)
    if marked is not None:
        differ = np.flatnonzero(marked != _marks(ids, vocab_size))
        if differ.size:
            raise ValueError(
                f"t2d and d2t disagree about {differ.size} tokens, first {differ[0]}: "
                "use the files of one checkpoint"
            )
    return ids.astype(np.int32)


def sort_rows(read: Mapping[str, np.ndarray], ids: np.ndarray) -> Mapping[str, np.ndarray]:
    """Return `read` with the rows of draft tokens in the order of ascending ids.

    Args:
      read: tensors by name.
      ids: int [D], as `read_ids` returns them.
    """
    order = np.argsort(ids)
    if (np.diff(order) > 0).all():
        return read
    view = _Sorted(read, order)
    return view if isinstance(read, Tensors) else dict(view)


class _Sorted(Tensors):
    """A view of tensors that takes the rows of draft tokens, and their map, in another order."""

    def __init__(self, read: Mapping[str, np.ndarray], order: np.ndarray):
        self._read, self._order = read, order
        self._home = dict.fromkeys(read)

    def __getitem__(self, name: str) -> np.ndarray:
        tensor, order = self._read[name], self._order
        if name == "d2t":
            places = np.arange(len(tensor))
            return (tensor.astype(np.int64) + places)[order] - places
        return tensor[order] if name in _ROWS else tensor

    def shape(self, name: str) -> tuple[int, ...]:
        return self._read.shape(name)

    def dtype(self, name: str) -> str:
        return self._read.dtype(name)


def resize_vocabulary(read: Tensors, stored: int, rows: int, size: int | None) -> Tensors:
    """Return `read` for a target whose embedding table has `rows` rows instead of `stored`.

    Rows that are missing are zeros. If the drafter has its own output projection, those of its rows
    become the draft vocabulary.

    Args:
      read: tensors by name.
      stored: rows that the drafter was made for.
      rows: V, the target's rows.
      size: D of the drafter's config; None: its draft vocabulary is whole.
    """
    return read if stored == rows else _Resized(read, stored, rows, size)


class _Resized(Tensors):
    """A view of tensors with another number of rows for the tokens."""

    def __init__(self, read: Tensors, stored: int, rows: int, size: int | None):
        whole = size in (None, stored)
        wanted = {name: rows for name in _TABLES} | {name: size or rows for name in _ROWS if whole}
        self._read = read
        self._home = {
            name: wanted[name] if read.shape(name)[:1] == (stored,) and name in wanted else None
            for name in read
        }
        self._map = {}
        if size == stored and "d2t" not in read:
            self._map = mapping_tensors(np.arange(stored), rows)
            self._home |= dict.fromkeys(self._map)

    def __getitem__(self, name: str) -> np.ndarray:
        if name in self._map:
            return self._map[name]
        tensor, rows = self._read[name], self._home[name]
        if rows is None or rows == len(tensor):
            return tensor
        more = np.zeros((max(0, rows - len(tensor)), *tensor.shape[1:]), tensor.dtype)
        return np.concatenate([tensor[:rows], more])

    def shape(self, name: str) -> tuple[int, ...]:
        if name in self._map:
            return self._map[name].shape
        rows, shape = self._home[name], self._read.shape(name)
        return shape if rows is None else (rows, *shape[1:])

    def dtype(self, name: str) -> str:
        return {"d2t": "I64", "t2d": "BOOL"}[name] if name in self._map else self._read.dtype(name)


def _check(name: str, tensor: np.ndarray, kinds: str, dtype: str, size: int) -> None:
    """Raise a ValueError unless a tensor has the shape [size] and one of numpy's `kinds` of dtype."""
    if tensor.dtype.kind not in kinds or tensor.shape != (size,):
        found = f"{tensor.dtype.name} {list(tensor.shape)}"
        raise ValueError(
            f"{name} is {found}, but config.json says {dtype} {[size]}: "
            "use the files of one checkpoint"
        )


def _check_ids(ids: np.ndarray, vocab_size: int) -> None:
    beyond = np.flatnonzero((ids < 0) | (ids >= vocab_size))
    if beyond.size:
        raise ValueError(
            f"d2t maps draft token {beyond[0]} to {ids[beyond[0]]}, outside the target's "
            f"{vocab_size} tokens: it must hold offsets, target id = i + d2t[i]"
        )
    order = np.argsort(ids, kind="stable")
    twice = np.flatnonzero(np.diff(ids[order]) == 0)
    if twice.size:
        first, second = order[twice[0]], order[twice[0] + 1]
        raise ValueError(
            f"d2t maps draft tokens {first} and {second} both to {ids[first]}: "
            "it must hold offsets, target id = i + d2t[i]"
        )


def _read_marks(marked: np.ndarray, vocab_size: int) -> np.ndarray:
    """Return `t2d` as bool [V]."""
    _check("t2d", marked, "biu", "bool", vocab_size)
    if not np.isin(marked, (0, 1)).all():
        raise ValueError("t2d must be 1 for tokens that can be drafted and 0 for all others")
    return marked.astype(bool)


def mapping_tensors(ids: np.ndarray, vocab_size: int) -> dict[str, np.ndarray]:
    """Make `d2t` and `t2d` from ascending token ids int [D]."""
    ids = np.asarray(ids, np.int64)
    return {"d2t": ids - np.arange(len(ids)), "t2d": _marks(ids, vocab_size)}


def _marks(ids: np.ndarray, vocab_size: int) -> np.ndarray:
    marks = np.zeros(vocab_size, bool)
    marks[ids] = True
    return marks
