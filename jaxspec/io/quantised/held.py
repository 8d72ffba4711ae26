"""A view of a checkpoint in which some tensors are read as they are stored, without rounding.

Codes of four bits lie in halves: byte j of a group holds its input j in the low bits, and input j of
its second half in the high ones. Whoever reads bytes gets two runs of inputs, and interleaves
nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from jaxspec.io.files.tensors import BlockReader, RowReader, Tensors
from jaxspec.io.quantised.matrix import Grid, Opened
from jaxspec.io.quantised.tensors import QuantisedTensors

_DTYPES = {"int8": "I8", "fp8": "F8_E4M3"}


def scale_name(name: str) -> str:
    """Return the name of the scales of a held tensor."""
    return f"{name}:scale"


def zero_name(name: str) -> str:
    """Return the name of the zero points of a held tensor of four bits."""
    return f"{name}:zero"


class HeldTensors(Tensors):
    """Tensors of a checkpoint, some of them as they are stored.

    Args:
      read: the checkpoint.
      bytes: names of tensors that have a `kind`. They are read as int8 or float8 [out, in], and
        `scale_name` as float32 [out].
      halves: names of tensors that have `groups`. They are read as uint8 [out, in / 2], see
        `jaxspec.io.quantised.halves`, `scale_name` and, of integers, `zero_name` as float32
        [G, out].
    """

    def __init__(self, read: QuantisedTensors, bytes: Iterable[str], halves: Iterable[str] = ()):
        self._read, self._bytes, self._halves = read, frozenset(bytes), frozenset(halves)
        scales = {scale_name(name): name for name in self._bytes | self._halves}
        integers = [n for n in self._halves if read.groups(n).numbers == "integer"]
        zeros = {zero_name(name): name for name in integers}
        self._home = dict.fromkeys(read) | scales | zeros

    def __getitem__(self, name: str) -> np.ndarray:
        if self._is_plain(name):
            return self._read[name]
        rows, *rest = self.shape(name)
        return self.row_reader(name)(0, rows, np.empty(4 * rows * int(np.prod(rest)), np.uint8))

    def shape(self, name: str) -> tuple[int, ...]:
        home = self._home[name]
        outputs, *rest = self._read.shape(home or name)
        if name in self._halves:
            return outputs, rest[0] // 2
        if home is None:
            return outputs, *rest
        groups = self._read.groups(home) if home in self._halves else None
        return (outputs,) if groups is None else (rest[0] // groups.inputs, outputs)

    def dtype(self, name: str) -> str:
        if name in self._halves:
            return "U8"
        if name in self._bytes:
            return _DTYPES[self._read.kind(name)]
        return "F32" if self._home[name] else self._read.dtype(name)

    def row_reader(self, name: str) -> RowReader:
        if self._is_plain(name):
            return self._read.row_reader(name)
        home = self._home[name] or name
        outputs, inputs = self._read.shape(home)
        opened = self._read.open(home)
        if name in self._bytes:
            return opened.values
        if name in self._halves:
            return _halve(opened, inputs)
        if home in self._bytes:
            array = opened.scale
        elif name == zero_name(home):
            array = _group_zeros(opened.grid, outputs)
        else:
            fp4 = self._read.groups(home).numbers == "fp4"
            array = _group_scales(opened.grid, outputs, fp4)
        return lambda start, stop, memory: array[start:stop]

    def block_reader(self, name: str) -> BlockReader:
        if self._is_plain(name):
            return self._read.block_reader(name)
        read, row = self.row_reader(name), 4 * self._read.shape(name)[1]

        def block(start: int, stop: int, columns: slice, memory: np.ndarray) -> np.ndarray:
            return read(start, stop, np.empty((stop - start) * row, np.uint8))[:, columns]

        return block

    def _is_plain(self, name: str) -> bool:
        return self._home[name] is None and name not in self._bytes | self._halves


def _halve(opened: Opened, inputs: int) -> RowReader:
    """Return a function that reads rows of codes in halves, uint8 [n, in / 2].

    Args:
      opened: has codes and their grid.
      inputs: in.
    """
    codes, size = opened.codes, opened.grid.inputs

    def read(start: int, stop: int, memory: np.ndarray) -> np.ndarray:
        groups = codes(start, stop, memory).reshape(stop - start, -1, 2, size // 2)
        return (groups[:, :, 0] | groups[:, :, 1] << 4).reshape(stop - start, inputs // 2)

    return read


def _group_scales(grid: Grid, outputs: int, fp4: bool) -> np.ndarray:
    """Return the scales of groups, float32 [G, out]; of FP4 numbers half of them.

    Numbers of FP4 are doubled to be integers.
    """
    scale = np.broadcast_to(grid.scale, (outputs, grid.scale.shape[1])).T
    return scale * np.float32(0.5) if fp4 else scale


def _group_zeros(grid: Grid, outputs: int) -> np.ndarray:
    """Return the zero points of groups, float32 [G, out]."""
    zero = 0 if grid.zero is None else grid.zero
    shape = (outputs, grid.scale.shape[1])
    return np.broadcast_to(np.asarray(zero, np.float32), shape).T
