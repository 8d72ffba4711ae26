"""GGUF files, llama.cpp's format: metadata, and tensors dequantised one at a time.

The `gguf` package parses the file and dequantises blocks; the file stays mapped. Source of the
format: ggml-org/ggml, docs/gguf.md.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from jaxspec.io.files.tensors import RowReader, Tensors

SUFFIX = ".gguf"


class GgufFile(Tensors):
    """Tensors of a GGUF file by llama.cpp's names, each dequantised to float32 when it is read.

    Attributes:
      path: the file.
      metadata: all entries of the header, as Python values and lists.

    Raises:
      FileNotFoundError: no such file.
      ValueError: the file is truncated or damaged, no GGUF file, or one part of several.
    """

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path)
        if not self.path.is_file():
            raise FileNotFoundError(f"no file {self.path}")
        try:
            reader = _open_reader(self.path)
            self.metadata: dict[str, Any] = {
                name: field.contents() for name, field in reader.fields.items()
            }
            self._home = {tensor.name: tensor for tensor in reader.tensors}
        except Exception as error:  # the reader meets damage with any exception of numpy or its own
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise ValueError(
                f"{self.path} is truncated or is no GGUF file ({reason}): download it again"
            ) from None
        if self.metadata.get("split.count", 1) != 1:
            raise ValueError(
                f"{self.path} is one of {self.metadata['split.count']} parts: join them with "
                "llama.cpp's `llama-gguf-split --merge` and load the result"
            )

    def __getitem__(self, name: str) -> np.ndarray:
        return self.part(name)

    def part(self, name: str, index: int | None = None) -> np.ndarray:
        """Read a tensor, or row `index` of its outermost axis (one expert), as float32.

        Raises:
          ValueError: a block type that the `gguf` package cannot dequantise.
        """
        data = self._home[name].data
        return self._dequantize(name, data if index is None else data[index])

    def row_reader(self, name: str, index: int | None = None) -> RowReader:
        """Return a function that reads some rows of a tensor, or of one expert, as float32."""
        data = self._home[name].data
        data = data if index is None else data[index]
        if data.ndim == 1:  # a quantised vector would be bytes without rows
            whole = self._dequantize(name, data)
            return lambda start, stop, memory: whole[start:stop]
        return lambda start, stop, memory: self._dequantize(name, data[start:stop])

    def _dequantize(self, name: str, data: np.ndarray) -> np.ndarray:
        """Return blocks of a tensor as float32."""
        from gguf.quants import dequantize

        tensor = self._home[name]
        try:
            values = dequantize(data, tensor.tensor_type)
        except NotImplementedError:
            raise ValueError(
                f"{self.path}: {name} is stored as {tensor.tensor_type.name}, which the `gguf` "
                "package cannot dequantise: update it, or use a file of another type"
            ) from None
        return np.asarray(values, np.float32)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor, outermost axis first."""
        return tuple(int(size) for size in reversed(self._home[name].shape))

    def dtype(self, name: str) -> str:
        """Return the dtype that indexing gives, always `F32`."""
        return "F32"

    def stored_dtype(self, name: str) -> str:
        """Return llama.cpp's name of the block type, such as `Q4_1`."""
        return self._home[name].tensor_type.name

    @property
    def size(self) -> int:
        """Bytes of all tensors as they are stored."""
        return sum(int(tensor.n_bytes) for tensor in self._home.values())


def _open_reader(path: Path) -> Any:
    """Open a file with the `gguf` package.

    It takes the metadata apart by hundreds of thousands of slices, which take three times as long
    of a memory map as of the array of its bytes.
    """
    from gguf import GGUFReader

    class Reader(GGUFReader):
        @property
        def data(self) -> np.ndarray:
            return self._bytes

        @data.setter
        def data(self, mapped: np.memmap) -> None:
            self._bytes = np.asarray(mapped)

    return Reader(path)


def find_gguf(directory: Path) -> Path | None:
    """Return the GGUF file of a directory without config.json, or None if it holds none.

    Raises:
      ValueError: it holds several.
    """
    if (directory / "config.json").is_file():
        return None
    found = sorted(directory.glob(f"*{SUFFIX}"))
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise ValueError(f"{directory} holds several GGUF files: load one of {names}")
    return found[0] if found else None
