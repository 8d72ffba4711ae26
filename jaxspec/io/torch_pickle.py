"""The pickle inside a PyTorch checkpoint, read without running what a pickle may ask for.

A pickle is a program for a small machine that can call any function it names. Here it can name only
dictionaries, storages and the functions that make tensors of them, and those are stand-ins that
describe a tensor instead of making one.
"""

from __future__ import annotations

import pickle
from collections import OrderedDict
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

# The storage classes that a pickle may name, and what their elements are.
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
    name: str


class Storage(NamedTuple):
    key: str
    dtype: np.dtype
    size: int


class Tensor(NamedTuple):
    """A strided view of a storage; offset and strides count elements."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def _rebuild_tensor(storage, offset, shape, strides, *_unused) -> Tensor:
    """Stands in for torch._utils._rebuild_tensor and _rebuild_tensor_v2; gradients and hooks are
    passed over.
    """
    numbers = (offset, *shape, *strides)
    if (
        not isinstance(storage, Storage)
        or len(shape) != len(strides)
        or not all(type(n) is int and n >= 0 for n in numbers)
    ):
        raise ValueError(
            "a tensor is described by something other than a storage, an offset, a shape and strides"
        )
    return Tensor(storage, offset, tuple(shape), tuple(strides))


def _rebuild_parameter(data, *_unused) -> Tensor:
    """Stands in for torch._utils._rebuild_parameter."""
    if not isinstance(data, Tensor):
        raise ValueError("a parameter is made of something other than a tensor")
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
    def find_class(self, module: str, name: str):
        found = _GLOBALS.get((module, name))
        if found is None:
            raise UnsafePickle(
                f"its pickle asks for {module}.{name}, and only plain tensors in a dictionary are read"
            )
        return found

    def persistent_load(self, pid):
        kind, storage_type, key, _device, size = pid
        if (
            kind != "storage"
            or not isinstance(storage_type, StorageType)
            or type(size) is not int
            or size < 0
        ):
            raise ValueError("a storage is described in an unknown way")
        return Storage(str(key), np.dtype(_STORAGES[storage_type.name]), size)


def read_pickle(stream) -> Any:
    """What a checkpoint's `data.pkl` describes: dictionaries and other plain values, with a
    `Tensor` for every tensor.

    Raises:
      UnsafePickle: it names a global that is not on the short list; nothing was run.
      ValueError: it is truncated or corrupt.
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
