"""Read rows of stored tensors into given memory, without mapping the file.

A library that maps a file copies tensors out of it while it holds Python's lock, and every page
that it has touched counts as memory of the process. Plain reads do neither, so a thread can read
ahead.
"""

from __future__ import annotations

import json
import math
import os
import struct
import weakref

import numpy as np

from jaxspec.io.files.tensors import BlockReader, RowReader


class RawFile:
    """An open file of tensors.

    Raises:
      OSError: the file cannot be opened.
    """

    def __init__(self, path: str | os.PathLike):
        self.path = path
        self._file = open(path, "rb", buffering=0)  # noqa: SIM115  (closed with this object)
        weakref.finalize(self, self._file.close)

    def read(self, offset: int, memory: memoryview) -> None:
        """Fill `memory` with the bytes from `offset` on.

        Raises:
          ValueError: the file ends before.
        """
        self._file.seek(offset)
        filled = 0
        while filled < len(memory):
            count = self._file.readinto(memory[filled:])
            if not count:
                raise ValueError(
                    f"{self.path} is truncated or corrupt (it ends inside a tensor); "
                    "download it again"
                )
            filled += count

    def row_reader(self, offset: int, shape: tuple[int, ...], dtype: np.dtype) -> RowReader:
        """Return a function that reads rows of a contiguous tensor.

        Args:
          offset: the tensor's first byte in the file.
          shape: the tensor's shape, of at least one axis.
          dtype: its stored dtype.
        """
        row = math.prod(shape[1:]) * dtype.itemsize

        def read(start: int, stop: int, memory: np.ndarray) -> np.ndarray:
            own = memory[: (stop - start) * row]
            self.read(offset + start * row, memoryview(own))
            return own.view(dtype).reshape(stop - start, *shape[1:])

        return read

    def block_reader(self, offset: int, shape: tuple[int, int], dtype: np.dtype) -> BlockReader:
        """Return a function that reads columns of a contiguous matrix, and nothing between them.

        Args:
          offset, shape, dtype: see `row_reader`.
        """
        row = shape[1] * dtype.itemsize

        def read(start: int, stop: int, columns: slice, memory: np.ndarray) -> np.ndarray:
            size = (columns.stop - columns.start) * dtype.itemsize
            own, first = memory[: (stop - start) * size], offset + columns.start * dtype.itemsize
            view = memoryview(own)
            for i in range(stop - start):
                self.read(first + (start + i) * row, view[i * size : (i + 1) * size])
            return own.view(dtype).reshape(stop - start, -1)

        return read


class RawSafetensors(RawFile):
    """An open safetensors file, which the library has found to be sound.

    Attributes:
      offsets: {name: first byte of the tensor in the file}.
    """

    def __init__(self, path: str | os.PathLike):
        super().__init__(path)
        (length,) = struct.unpack("<Q", self._read_bytes(0, 8))
        header = json.loads(self._read_bytes(8, length))
        header.pop("__metadata__", None)
        self.offsets: dict[str, int] = {
            name: 8 + length + entry["data_offsets"][0] for name, entry in header.items()
        }

    def _read_bytes(self, offset: int, size: int) -> bytearray:
        content = bytearray(size)
        self.read(offset, memoryview(content))
        return content
