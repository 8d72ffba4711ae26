"""Read safetensors files memory-mapped, one tensor at a time, and write them atomically."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from jaxspec.io.files.atomic import replacing
from jaxspec.io.files.coded import Coded, decode, encode, read_entry
from jaxspec.io.files.json_files import read_json
from jaxspec.io.files.packed import packed_names, scale_name, unpack, unpacked_shape
from jaxspec.io.files.raw_file import RawSafetensors
from jaxspec.io.files.tensors import (
    FLOAT_DTYPES,
    STORED_DTYPES,
    BlockReader,
    RowReader,
    Tensors,
    count_bytes,
    weight_dtype,
)

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
# Not weights, but the tables of a draft vocabulary, which exporters store in any integer type.
_TABLES = ("I64", "I32", "BOOL")
_INTEGERS = ("I16", "I8", "U8", "U16", "U32", "U64")
# What numpy can hold; codes are bytes.
_READ = (*FLOAT_DTYPES, *_TABLES, *_INTEGERS)
_MAPS = ("d2t", "t2d", "draft_id_to_target_id")


class WeightFiles(Tensors):
    """Tensors of a directory by name.

    Files stay mapped; indexing copies one tensor into memory, in its stored dtype. A coded tensor
    (see `jaxspec.io.files.coded`) is read as what it was. A packed one (see
    `jaxspec.io.files.packed`) is read as float32, and its scales are not among the names.

    Raises:
      FileNotFoundError: the directory, its weights or some of its shards are missing.
      ValueError: a file is truncated or corrupt, or a tensor has a dtype other than float32,
        float16, bfloat16, int64, int32, bool or packed.
    """

    def __init__(self, directory: str | os.PathLike):
        self.directory = Path(directory)
        self._open(shard_paths(self.directory, WEIGHTS, INDEX))
        lost_tensors(self.directory, self._stored, WEIGHTS, INDEX)

    @classmethod
    def of_file(cls, path: str | os.PathLike) -> WeightFiles:
        """Open one safetensors file, whatever its name."""
        files = cls.__new__(cls)
        files.directory = Path(path).parent
        files._open([Path(path)])
        return files

    def _open(self, paths: list[Path]) -> None:
        self._files = {path.name: open_safetensors(path) for path in paths}
        self._raw: dict[str, RawSafetensors] = {}
        # safetensors' handles have keys() but cannot be iterated over.
        names = {file: list(handle.keys()) for file, handle in self._files.items()}
        self._stored = {name: file for file, own in names.items() for name in own}
        self._coded: dict[str, Coded] = {}
        for file, handle in self._files.items():
            try:
                found = read_entry(handle.metadata())
            except ValueError as error:
                raise _damaged(self.directory / file, error) from None
            self._coded |= {name: of for name, of in found.items() if name in names[file]}
        self._packed = packed_names(self._stored, self.stored_dtype)
        scales = {scale_name(name) for name in self._packed}
        self._home = {n: file for n, file in self._stored.items() if n not in scales}

    def __getitem__(self, name: str) -> np.ndarray:
        stored = self.stored_dtype(name)
        if name in self._packed:
            return unpack(self._read(name), self._read(scale_name(name)))
        table = stored in _INTEGERS and name.rpartition(".")[2] in _MAPS
        if stored not in (*FLOAT_DTYPES, *_TABLES) and not table:
            raise ValueError(
                f"{self.directory}: {name} is stored as {stored}; only F32, F16 and BF16 weights "
                "can be read: "
                "use an unquantised checkpoint"
            )
        return self._read(name)

    def _read(self, name: str) -> np.ndarray:
        """Read a tensor of the file, and restore it if it is coded."""
        file, found = self._stored[name], self._slice(name).get_dtype()
        if found not in (("U8",) if name in self._coded else _READ):
            raise _damaged(self.directory / file, f"{name} is stored as {found}")
        stored = self._files[file].get_tensor(name)
        if name not in self._coded:
            return stored
        try:
            return decode(stored, *self._coded[name])
        except ValueError as error:
            raise _damaged(self.directory / file, f"{name}: {error}") from None

    def row_reader(self, name: str) -> RowReader:
        """Return a function that reads some rows of a tensor, without mapping them."""
        stored = self.stored_dtype(name)
        if name in self._coded or stored not in FLOAT_DTYPES:  # packed, or refused
            return super().row_reader(name)
        raw = self._open_raw(name)
        return raw.row_reader(raw.offsets[name], self.shape(name), np.dtype(FLOAT_DTYPES[stored]))

    def stored_reader(self, name: str) -> RowReader:
        """Return a function that reads some rows of a tensor as the file holds them.

        A scalar is one row.

        Raises:
          ValueError: the dtype is none of `STORED_DTYPES`.
        """
        stored = self._slice(name).get_dtype()
        if stored not in STORED_DTYPES:
            raise ValueError(
                f"{self.directory}: {name} is stored as {stored}, which is not read (read: "
                f"{', '.join(STORED_DTYPES)}): use another checkpoint"
            )
        raw, shape = self._open_raw(name), tuple(self._slice(name).get_shape()) or (1,)
        return raw.row_reader(raw.offsets[name], shape, np.dtype(STORED_DTYPES[stored]))

    def block_reader(self, name: str) -> BlockReader:
        """Return a function that reads some columns of some rows of a matrix, and no others."""
        stored = self.stored_dtype(name)
        if name in self._coded or stored not in FLOAT_DTYPES:
            return super().block_reader(name)
        raw, (rows, columns) = self._open_raw(name), self.shape(name)
        dtype = np.dtype(FLOAT_DTYPES[stored])
        return raw.block_reader(raw.offsets[name], (rows, columns), dtype)

    def _open_raw(self, name: str) -> RawSafetensors:
        file = self._stored[name]
        if file not in self._raw:
            self._raw[file] = RawSafetensors(self.directory / file)
        return self._raw[file]

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape; only the file's header is read."""
        stored = self._stored_shape(name)
        if name not in self._packed:
            return stored
        return unpacked_shape(stored, self._stored_shape(scale_name(name)))

    def _stored_shape(self, name: str) -> tuple[int, ...]:
        if name in self._coded:
            return self._coded[name][1]
        return tuple(self._slice(name).get_shape())

    def size(self, name: str) -> int:
        """Return the bytes that a tensor takes in the file, its scales included."""
        if name in self._coded:
            (own,) = self._slice(name).get_shape()
        else:
            own = math.prod(self._stored_shape(name)) * count_bytes(self.stored_dtype(name))
        return own + (self.size(scale_name(name)) if name in self._packed else 0)

    @property
    def files(self) -> list[str]:
        """Names of the files."""
        return list(self._files)

    @property
    def packed(self) -> frozenset[str]:
        """Names of the tensors that are packed into six bits per weight."""
        return self._packed

    @property
    def coded(self) -> frozenset[str]:
        """Names of the tensors of which the file holds codes."""
        return frozenset(self._coded)

    def dtype(self, name: str) -> str:
        """Return the dtype that indexing gives (`F32`, `BF16`, `I64`, `BOOL`, …)."""
        return "F32" if name in self._packed else self.stored_dtype(name)

    def stored_dtype(self, name: str) -> str:
        """Return the dtype in the file: `U8` for a packed tensor, what it was for a coded one."""
        return self._coded[name][0] if name in self._coded else self._slice(name).get_dtype()

    def _slice(self, name: str):
        """Return the safetensors handle of one tensor, which gives shape and dtype."""
        file = self._stored[name]
        try:
            return self._files[file].get_slice(name)
        except SafetensorError as error:
            raise _damaged(self.directory / file, error) from None


def write_safetensors(
    path: str | os.PathLike,
    tensors: Mapping[str, np.ndarray],
    dtype: str | None = None,
    coded: bool = False,
) -> None:
    """Write `tensors` to one file, cast to `dtype` (`float32`, `float16` or `bfloat16`) if given.

    The file appears whole or not at all, see `jaxspec.io.files.atomic`. If `coded`, it holds codes
    (`jaxspec.io.files.coded`), which other engines cannot read.

    Raises:
      OSError: it cannot be written.
    """
    target = None if dtype is None else weight_dtype(dtype)
    plain = {
        name: np.ascontiguousarray(tensor if target is None else tensor.astype(target))
        for name, tensor in tensors.items()
    }
    stored, entry = encode(plain) if coded else (plain, {})
    with replacing(path) as partial:
        # transformers refuses files without this format mark.
        save_file(stored, partial, metadata={"format": "pt"} | entry)


def has_safetensors(directory: Path) -> bool:
    """Whether a directory has weights in safetensors files."""
    return (directory / WEIGHTS).is_file() or (directory / INDEX).is_file()


def shard_paths(directory: Path, single: str, index: str) -> list[Path]:
    """List the files that hold a directory's weights.

    This is `single` if it exists, as in transformers, else the files that `index` names.

    Raises:
      FileNotFoundError: the directory, its weights or some of its shards are missing.
    """
    if not directory.is_dir():
        raise FileNotFoundError(f"{directory} is not a directory")
    if (directory / single).is_file():
        return [directory / single]
    names = sorted(set(_weight_map(directory, single, index).values()))
    if not names:
        raise FileNotFoundError(_no_weights(directory))
    missing = [name for name in names if not (directory / name).is_file()]
    if missing:
        raise FileNotFoundError(
            f"{directory}: {len(missing)} of {len(names)} weight files named in {index} are "
            "missing "
            f"({', '.join(missing[:4])}{', …' if len(missing) > 4 else ''}); download them"
        )
    return [directory / name for name in names]


def lost_tensors(directory: Path, found: Iterable[str], single: str, index: str) -> None:
    """Raise ValueError if the index lists tensors that were not `found` in its shards."""
    lost = sorted(set(_weight_map(directory, single, index)) - set(found))
    if lost:
        raise ValueError(
            f"{directory}: {index} lists {len(lost)} tensors that its shards do not hold, first "
            f"{lost[0]!r}; "
            "the shards are of another version: download the directory again"
        )


def lfs_pointer(start: bytes) -> bool:
    """Whether a file that starts with these bytes is a Git LFS pointer."""
    return start.startswith(b"version htt")


def _weight_map(directory: Path, single: str, index: str) -> dict[str, str]:
    """Read {tensor: shard} from the index; return {} if a single file is used."""
    if (directory / single).is_file() or not (directory / index).is_file():
        return {}
    found = read_json(directory / index).get("weight_map") or {}
    names = found.values() if isinstance(found, dict) else [None]
    if not all(isinstance(name, str) and Path(name).name == name for name in names):
        raise ValueError(
            f"{directory / index}: weight_map must map tensors to file names; download it again"
        )
    return found


def _no_weights(directory: Path) -> str:
    """Write the error message for a directory without safetensors weights."""
    if (directory / INDEX).is_file():
        return f"{directory}: {INDEX} has no weight_map; download it again"
    pickled = sorted(path.name for path in directory.glob("pytorch_model*.bin"))
    if pickled:
        return (
            f"{directory} has only PyTorch weights ({pickled[0]}), which are not read; convert "
            "them once with "
            "transformers: AutoModelForCausalLM.from_pretrained(DIR).save_pretrained(NEW_DIR)"
        )
    return f"{directory} has no weights: expected {WEIGHTS}, or {INDEX} with its shards"


def open_safetensors(path: Path):
    """Open a safetensors file.

    Raises:
      ValueError: it cannot be read; the message says why.
    """
    try:
        return safe_open(path, framework="numpy")
    except SafetensorError as error:
        with open(path, "rb") as file:
            if lfs_pointer(file.read(11)):
                raise ValueError(
                    f"{path} is a Git LFS pointer, not the weights; run `git lfs pull`"
                ) from None
        raise _damaged(path, error) from None


def _damaged(path: Path, error: Exception | str) -> ValueError:
    """Make a one-line error for a file that cannot be read."""
    # The parser's message lists every dtype that it knows; cut that off.
    reason = str(error).splitlines()[0].split(", expected one of")[0]
    return ValueError(f"{path} is truncated or corrupt ({reason}); download it again")
