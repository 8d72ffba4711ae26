"""The records of tensors in few bits, and how floats are made of their codes."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import ml_dtypes
import numpy as np

from jaxspec.io.files.tensors import RowReader

_FP8 = np.dtype(ml_dtypes.float8_e4m3fn)
_FP8_NUMBERS = np.arange(256, dtype=np.uint8).view(_FP8).astype(np.float32)


class Grid(NamedTuple):
    """What makes floats of codes: weight = (code - zero) * scale.

    Attributes:
      scale: float32 [R, C], one for each block of outputs and inputs.
      zero: [R, C], the same for zero points; a number for all; None: 0.
      outputs: how many outputs share a scale.
      inputs: how many inputs do.
      group: int [in], the column of `scale` of each input; None: they follow one another.
    """

    scale: np.ndarray
    zero: np.ndarray | int | None = None
    outputs: int = 1
    inputs: int = 1
    group: np.ndarray | None = None


class Groups(NamedTuple):
    """Groups of inputs, each with a scale for every output.

    Attributes:
      inputs: of a group.
      dtype: of the scales in the files, in NumPy's words.
      numbers: `integer`, for codes less a zero point; or `fp4`.
    """

    inputs: int
    dtype: str
    numbers: str = "integer"


class Opened(NamedTuple):
    """A tensor whose scales have been read.

    Attributes:
      rows: reads some rows as float32.
      values: reads some rows as they are stored, one byte each, if one scale per output belongs to
        them.
      scale: these scales, float32 [out].
      codes: reads some rows of codes of four bits, uint8 [n, in], if the tensor has `groups`.
      grid: what makes floats of them.
    """

    rows: RowReader
    values: RowReader | None = None
    scale: np.ndarray | None = None
    codes: RowReader | None = None
    grid: Grid | None = None


class Matrix(NamedTuple):
    """A tensor in few bits.

    Attributes:
      shape: of the tensor that it stands for.
      kind: `int8` or `fp8` if `open` gives values of one byte with a scale per output; else None.
      open: reads its scales.
      groups: of inputs that follow one another, if the tensor consists of codes of four bits.
    """

    shape: tuple[int, ...]
    kind: str | None
    open: Callable[[], Opened]
    groups: Groups | None = None


def decode(codes: RowReader, grid: Grid) -> RowReader:
    """Return a function that reads rows as float32.

    Args:
      codes: reads rows of codes [n, in], integers or float8.
      grid: zero points and scales.
    """

    # Rows are read many times, and are fast to read where they lie side by side.
    scale, zero = np.ascontiguousarray(grid.scale), grid.zero
    zeros = None if zero is None else np.ascontiguousarray(zero, np.float32)

    def read(start: int, stop: int, memory: np.ndarray) -> np.ndarray:
        values = to_float32(codes(start, stop, memory))
        row = np.arange(start, stop) // grid.outputs
        if zeros is not None and zeros.ndim == 2:
            _apply(np.subtract, values, zeros[row], grid)
        elif zeros is not None:
            values -= zeros
        _apply(np.multiply, values, scale[row], grid)
        return values

    return read


def to_float32(codes: np.ndarray) -> np.ndarray:
    """Convert codes to float32 exactly; the result is new memory."""
    if codes.dtype == _FP8:  # a table is faster than NumPy's conversion
        return _FP8_NUMBERS.take(codes.view(np.uint8), mode="clip")
    return codes.astype(np.float32)


def _apply(operation: np.ufunc, values: np.ndarray, operand: np.ndarray, grid: Grid) -> None:
    """Change values [n, in] in place by an operand [n, C]."""
    inputs = values.shape[1]
    if grid.group is not None:
        operation(values, operand.take(grid.group, axis=1), out=values)
    elif operand.shape[1] == 1:
        operation(values, operand, out=values)
    elif inputs == operand.shape[1] * grid.inputs:
        blocks = values.reshape(len(values), -1, grid.inputs)
        operation(blocks, operand[..., None], out=blocks)
    else:  # the last block is cut off
        operation(values, np.repeat(operand, grid.inputs, axis=1)[:, :inputs], out=values)
