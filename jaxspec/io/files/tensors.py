"""Tensors of weight files: the base class of readers, the dtypes of weights, and refusing bad
values.

Readers map names to tensors, which are read on access.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

from jaxspec.core.runtime.near_miss import choose_one

FLOAT_DTYPES = {"F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}
# Of all kinds of tensors that checkpoints hold.
STORED_DTYPES = FLOAT_DTYPES | {
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E8M0": ml_dtypes.float8_e8m0fnu,
    "I64": np.int64,
    "I32": np.int32,
    "I8": np.int8,
    "U8": np.uint8,
}
# Values that are compared at a time; a processor's cache holds them.
_BLOCK = 2**18

# (start, stop, memory) -> rows start to stop of a tensor, in its stored dtype. Rows are indices of
# the first axis. The result may use `memory`, a uint8 array of at least as many bytes, or be an
# array of its own. One thread at a time may call it.
RowReader: TypeAlias = Callable[[int, int, np.ndarray], np.ndarray]
# (start, stop, columns, memory) -> columns of the second axis of rows start to stop, as above.
BlockReader: TypeAlias = Callable[[int, int, slice, np.ndarray], np.ndarray]


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

    def block_reader(self, name: str) -> BlockReader:
        """Return a function that reads some columns of some rows of a matrix.

        Unless a subclass can read columns alone, this reads whole rows.
        """
        read = self.row_reader(name)
        return lambda start, stop, columns, memory: read(start, stop, memory)[:, columns]


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

    def block_reader(self, name: str) -> BlockReader:
        return self._read.block_reader(self._home[name])


class Blocks(Tensors):
    """Parts of tensors, under their names.

    Args:
      read: the tensors.
      blocks: {name: (rows, columns)}: slices with a start and a stop. Columns of None are all of
        them. Other tensors are left out.
    """

    def __init__(self, read: Tensors, blocks: Mapping[str, tuple[slice, slice | None]]):
        self._read, self._home = read, blocks

    def __getitem__(self, name: str) -> np.ndarray:
        shape, dtype = self.shape(name), np.dtype(np.float32)
        memory = np.empty(int(np.prod(shape)) * dtype.itemsize, np.uint8)
        return self.row_reader(name)(0, shape[0], memory)

    def shape(self, name: str) -> tuple[int, ...]:
        rows, columns = self._home[name]
        rest = self._read.shape(name)[1:]
        if columns is not None:
            rest = (columns.stop - columns.start,)
        return (rows.stop - rows.start, *rest)

    def dtype(self, name: str) -> str:
        return self._read.dtype(name)

    def row_reader(self, name: str) -> RowReader:
        rows, columns = self._home[name]
        first = rows.start
        if columns is None:
            read = self._read.row_reader(name)
            return lambda start, stop, memory: read(first + start, first + stop, memory)
        block = self._read.block_reader(name)
        return lambda start, stop, memory: block(first + start, first + stop, columns, memory)


def find_row_reader(read: Mapping[str, np.ndarray], name: str) -> RowReader:
    """Return a function that reads rows of a tensor of `read`, `Tensors` or a dict of arrays."""
    return read.row_reader(name) if isinstance(read, Tensors) else _slice_rows(read[name])


def count_bytes(dtype: str) -> int:
    """Count the bytes per element of a safetensors dtype: BOOL, F8_E4M3, BF16, I64, …"""
    digits = "".join(c for c in dtype.split("_")[0] if c.isdigit())
    return max(1, int(digits or 8) // 8)


def _slice_rows(tensor: np.ndarray) -> RowReader:
    return lambda start, stop, memory: tensor[start:stop]


def weight_dtype(name: str) -> np.dtype:
    """Return the numpy dtype called `float32`, `float16` or `bfloat16`.

    Raises:
      ValueError: any other name.
    """
    by_name = {np.dtype(dtype).name: np.dtype(dtype) for dtype in FLOAT_DTYPES.values()}
    if str(name) not in by_name:
        raise ValueError(f"unknown dtype {name!r}: {choose_one(str(name), sorted(by_name))}")
    return by_name[str(name)]


def is_finite(x: np.ndarray) -> bool:
    """Say whether all values of an array of floats are finite; integers are.

    The exponent bits of NaN and infinities are all set; of float8, which has no infinities, all
    bits of NaN are. Integers are compared, since arithmetic on short floats is slow.
    """
    if np.issubdtype(x.dtype, np.integer):
        return True
    if x.dtype.itemsize == 1:
        return not np.any(x.view(np.uint8) & 0x7F == 0x7F)
    bits, sign = (np.uint16, 0x8000) if x.dtype.itemsize == 2 else (np.uint32, 0x80000000)
    exponent = {"float16": 0x7C00, "bfloat16": 0x7F80, "float32": 0x7F800000}[x.dtype.name]
    flat = x.ravel(order="K").view(bits)
    blocks = (flat[start : start + _BLOCK] for start in range(0, flat.size, _BLOCK))
    return all(int((block & bits(sign - 1)).max()) < exponent for block in blocks)


def check_finite(name: str, dtype: str, stored: bool, cast: bool) -> None:
    """Refuse a tensor that is not finite.

    Args:
      name: the tensor's name.
      dtype: name of the dtype that it was cast to.
      stored: whether all stored values are finite.
      cast: whether all values are finite in `dtype`.

    Raises:
      ValueError: one of them is not.
    """
    if not stored:
        raise ValueError(
            f"{name} holds NaN or infinite values: the checkpoint is damaged; "
            "download or export it again"
        )
    if not cast:
        raise ValueError(
            f"{name} does not fit in {dtype}: load it with dtype='float32' or 'bfloat16'"
        )
