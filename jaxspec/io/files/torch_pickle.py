"""Read the pickle inside a PyTorch checkpoint without running its code.

A pickle is a program that can call any function it names. Here it may name only dictionaries,
storages and the functions that make tensors from them. These functions are replaced by ones that
describe a tensor instead of making it.
"""

from __future__ import annotations

import pickle
from collections import OrderedDict
from typing import Any, BinaryIO, NamedTuple

import ml_dtypes
import numpy as np

# Storage classes that a pickle may name, and the dtypes of their elements.
_STORAGES = {
    "FloatStorage": np.float32,
    "HalfStorage": np.float16,
    "BFloat16Storage": ml_dtypes.bfloat16,
    "DoubleStorage": np.float64,
    "LongStorage": np.int64,
    "IntStorage": np.int32,
    "ShortStorage": np.int16,
    "CharStorage": np.int8,
    "ByteStorage": np.uint8,
    "BoolStorage": np.bool_,
}


class StorageType(NamedTuple):
    """A storage class by its name in PyTorch."""

    name: str


class Storage(NamedTuple):
    """A flat array of `size` elements; `key` names its file in the archive."""

    key: str
    dtype: np.dtype
    size: int


class Tensor(NamedTuple):
    """A strided view of a storage; offset and strides count elements."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def _rebuild_tensor(storage: Any, offset: Any, shape: Any, strides: Any, *_unused: Any) -> Tensor:
    """Replace torch._utils._rebuild_tensor and _rebuild_tensor_v2; ignore gradients and hooks."""
    numbers = (offset, *shape, *strides)
    if (
        not isinstance(storage, Storage)
        or len(shape) != len(strides)
        or not all(type(n) is int and n >= 0 for n in numbers)
    ):
        raise ValueError(
            "a tensor is not described by a storage, an offset, a shape and strides: "
            "save its values with safetensors"
        )
    return Tensor(storage, offset, tuple(shape), tuple(strides))


def _rebuild_parameter(data: Any, *_unused: Any) -> Tensor:
    """Replace torch._utils._rebuild_parameter."""
    if not isinstance(data, Tensor):
        raise ValueError("a parameter is not made from a tensor: save its values with safetensors")
    return data


_GLOBALS: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("torch._utils", "_rebuild_tensor"): _rebuild_tensor,
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
    ("torch._utils", "_rebuild_parameter"): _rebuild_parameter,
    **{("torch", name): StorageType(name) for name in _STORAGES},
}


class UnsafePickle(ValueError):
    """A pickle names something other than tensors and dictionaries."""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        found = _GLOBALS.get((module, name))
        if found is None:
            raise UnsafePickle(
                f"its pickle asks for {module}.{name}, but only plain tensors in a dictionary are "
                "read: save its tensors with safetensors"
            )
        return found

    def persistent_load(self, pid: Any) -> Storage:
        kind, storage_type, key, _device, size = pid
        if (
            kind != "storage"
            or not isinstance(storage_type, StorageType)
            or type(size) is not int
            or size < 0
        ):
            raise ValueError("its pickle describes a storage in an unknown way")
        return Storage(str(key), np.dtype(_STORAGES[storage_type.name]), size)


def read_pickle(stream: BinaryIO) -> Any:
    """Read a checkpoint's `data.pkl`: plain values, with a `Tensor` for every tensor.

    Args:
      stream: binary file.

    Raises:
      UnsafePickle: the pickle names anything other than tensors and dictionaries; nothing was run.
      ValueError: the pickle is truncated or corrupt.
    """
    try:
        return _Unpickler(stream, encoding="utf-8").load()
    except UnsafePickle:
        raise
    except (
        pickle.UnpicklingError,
        EOFError,
        IndexError,
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
    ) as error:
        raise ValueError(f"its pickle is truncated or corrupt ({error})") from None
