"""Read PyTorch's zip checkpoints (`.bin`, `.pt`, `.pth`) without PyTorch or code in the pickle.

`torch.save` writes a zip archive: `data.pkl` describes tensors by storage key, offset, shape and
strides; `data/<key>` holds a storage's bytes, uncompressed.
"""

from __future__ import annotations

import math
import mmap
import os
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from jaxspec.io.files.raw_file import RawFile
from jaxspec.io.files.safetensors_files import (
    WeightFiles,
    has_safetensors,
    lfs_pointer,
    lost_tensors,
    shard_paths,
)
from jaxspec.io.files.tensors import RowReader, Tensors
from jaxspec.io.files.torch_pickle import Tensor, UnsafePickle, read_pickle

TORCH_WEIGHTS = "pytorch_model.bin"
TORCH_INDEX = "pytorch_model.bin.index.json"


class TorchFile(Tensors):
    """Tensors of one file by name.

    The file stays mapped; indexing copies one tensor into memory, in its stored dtype.

    Raises:
      UnsafePickle: the pickle names a global that is not allowed; nothing was run.
      ValueError: the file is in PyTorch's format from before 1.6, is TorchScript, is truncated or
        corrupt, or holds values that are not tensors.
    """

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path)
        self._raw: RawFile | None = None
        with open(self.path, "rb") as file:
            content = _parse(self.path, file)
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self._places = _places(self.path, file)
        if not isinstance(content, Mapping):
            raise ValueError(f"{self.path} is {_kind(content)}, not a dictionary of tensors")
        wrong = next(
            (name for name, value in content.items() if not isinstance(value, Tensor)), None
        )
        if wrong is not None:
            raise ValueError(
                f"{self.path}: {wrong!r} is {_kind(content[wrong])}, not a tensor: it is a "
                "training checkpoint; save the "
                "model's state_dict() alone"
            )
        self._home: dict[str, Tensor] = {str(name): tensor for name, tensor in content.items()}
        for name in self._home:
            self._check(name)

    @property
    def files(self) -> list[str]:
        """The file's name."""
        return [self.path.name]

    def __getitem__(self, name: str) -> np.ndarray:
        return np.array(self._view(name), order="C")

    def row_reader(self, name: str) -> RowReader:
        """Return a function that reads some rows of a tensor; contiguous ones are not mapped."""
        view, tensor = self._view(name), self._home[name]
        if not view.flags.c_contiguous:
            return lambda start, stop, memory: np.array(view[start:stop], order="C")
        if self._raw is None:
            self._raw = RawFile(self.path)
        first, _ = self._places[tensor.storage.key]
        offset = first + tensor.offset * view.dtype.itemsize
        return self._raw.row_reader(offset, tensor.shape, view.dtype)

    def _view(self, name: str) -> np.ndarray:
        """Return a tensor in the mapped file; nothing is read."""
        tensor = self._home[name]
        start, _ = self._places[tensor.storage.key]
        dtype = tensor.storage.dtype
        if 0 in tensor.shape:
            return np.empty(tensor.shape, dtype)
        strides = tuple(stride * dtype.itemsize for stride in tensor.strides)
        offset = start + tensor.offset * dtype.itemsize
        return np.ndarray(tensor.shape, dtype, self._bytes, offset, strides)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape; only the pickle is read."""
        return self._home[name].shape

    def dtype(self, name: str) -> str:
        """Return the stored dtype as safetensors spells it (`F32`, `BF16`, `I64`, `BOOL`)."""
        return _safetensors_name(self._home[name].storage.dtype)

    def _check(self, name: str) -> None:
        """Refuse a tensor that is not wholly in the file or whose strides leave its storage."""
        tensor = self._home[name]
        last = tensor.offset + sum(
            (n - 1) * stride for n, stride in zip(tensor.shape, tensor.strides, strict=True)
        )
        place = self._places.get(tensor.storage.key)
        held = place[1] // tensor.storage.dtype.itemsize if place else 0
        if 0 not in tensor.shape and last >= min(held, tensor.storage.size):
            raise ValueError(
                f"{self.path}: {name} reaches beyond its storage: the file is truncated or "
                "corrupt; download it again"
            )
        if math.prod(tensor.shape) > max(held, 1):
            raise ValueError(
                f"{self.path}: {name} repeats its storage (an expanded tensor): save it contiguous"
            )


class TorchFiles(Tensors):
    """Tensors of a directory's pytorch_model.bin, or of its shards by index; see `TorchFile`."""

    def __init__(self, directory: str | os.PathLike):
        self.directory = Path(directory)
        self._files = {
            path.name: TorchFile(path)
            for path in shard_paths(self.directory, TORCH_WEIGHTS, TORCH_INDEX)
        }
        self._home = {name: file for file, handle in self._files.items() for name in handle}
        lost_tensors(self.directory, self._home, TORCH_WEIGHTS, TORCH_INDEX)

    def __getitem__(self, name: str) -> np.ndarray:
        return self._files[self._home[name]][name]

    def row_reader(self, name: str) -> RowReader:
        """Return a function that reads some rows of a tensor."""
        return self._files[self._home[name]].row_reader(name)

    @property
    def files(self) -> list[str]:
        """Names of the files."""
        return list(self._files)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape without reading the tensor."""
        return self._files[self._home[name]].shape(name)

    def dtype(self, name: str) -> str:
        """Return the stored dtype as safetensors spells it."""
        return self._files[self._home[name]].dtype(name)


def open_weights(directory: str | os.PathLike) -> WeightFiles | TorchFiles:
    """Open the weights of a directory: safetensors if there are any, else PyTorch's files.

    Errors are those of `WeightFiles` and `TorchFiles`.
    """
    directory = Path(directory)
    pickled = any((directory / name).is_file() for name in (TORCH_WEIGHTS, TORCH_INDEX))
    return (
        TorchFiles(directory)
        if pickled and not has_safetensors(directory)
        else WeightFiles(directory)
    )


def _parse(path: Path, file) -> Any:
    """Read the values that `data.pkl` of a zip checkpoint describes."""
    if not zipfile.is_zipfile(file):
        raise ValueError(_not_a_zip(path, file))
    try:
        with zipfile.ZipFile(file) as archive:
            names = archive.namelist()
            root = next(
                (name.removesuffix("data.pkl") for name in names if name.endswith("data.pkl")), None
            )
            if root is None or f"{root}constants.pkl" in names:
                raise ValueError(
                    f"{path} is not a checkpoint of tensors (TorchScript, or another zip): save "
                    "its state_dict()"
                )
            order = f"{root}byteorder"
            if order in names and archive.read(order) != b"little":
                raise ValueError(f"{path} was written on a big-endian machine, which is not read")
            with archive.open(f"{root}data.pkl") as stream:
                return _described(path, stream)
    except (zipfile.BadZipFile, EOFError, struct.error) as error:
        raise ValueError(f"{path} is truncated or corrupt ({error}); download it again") from None


def _described(path: Path, stream) -> Any:
    try:
        return read_pickle(stream)
    except UnsafePickle as error:
        raise UnsafePickle(f"{path} is refused: {error}") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}; download it again") from None


def _places(path: Path, file) -> dict[str, tuple[int, int]]:
    """Read {storage key: (first byte in the file, number of bytes)} from the zip's headers."""
    places = {}
    with zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            folder, _, key = info.filename.rpartition("/")
            if folder.rpartition("/")[2] != "data":
                continue
            if info.compress_type != zipfile.ZIP_STORED:
                raise ValueError(
                    f"{path} is compressed, which PyTorch never does; save it again with torch.save"
                )
            file.seek(info.header_offset + 26)
            name_length, extra_length = struct.unpack("<HH", file.read(4))
            places[key] = (info.header_offset + 30 + name_length + extra_length, info.file_size)
    size = os.fstat(file.fileno()).st_size
    if any(start + length > size for start, length in places.values()):
        raise ValueError(f"{path} is truncated or corrupt; download it again")
    return places


def _not_a_zip(path: Path, file) -> str:
    file.seek(0)
    start = file.read(16)
    if lfs_pointer(start):
        return f"{path} is a Git LFS pointer, not the weights; run `git lfs pull`"
    if start[:1] == b"\x80":  # a bare pickle; torch.save before 1.6 wrote several in a row
        return (
            f"{path} is in PyTorch's format of before 1.6, which is not read; convert it once "
            "where torch is installed: "
            "torch.save(torch.load(FILE, weights_only=True), NEW_FILE)"
        )
    return f"{path} is truncated or corrupt (not a zip archive); download it again"


def _kind(value: Any) -> str:
    return "a tensor" if isinstance(value, Tensor) else f"of type {type(value).__name__}"


def _safetensors_name(dtype: np.dtype) -> str:
    if dtype == ml_dtypes.bfloat16:
        return "BF16"
    return {
        "b": "BOOL",
        "f": f"F{dtype.itemsize * 8}",
        "i": f"I{dtype.itemsize * 8}",
        "u": f"U{dtype.itemsize * 8}",
    }[dtype.kind]
