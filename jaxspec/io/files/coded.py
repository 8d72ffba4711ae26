"""Tensors in fewer bytes, bit for bit: what varies little in a value is stored in Huffman codes.

A coded tensor is uint8 [bytes] in the file. The header's metadata says under `jaxspec.coded` what
it was: a JSON object {name: [dtype, shape]}, in safetensors' words.

* BF16: a byte of sign and fraction for every value, then a deflate stream of exponents, a byte
  each. Exponents of weights take 2.6 of 8 bits, signs and fractions are noise.
* U8: a deflate stream of all bytes, which here are the steps of `jaxspec.io.files.packed`.
* Others, which are scales and tables of ids: the same, of the bytes that they have in memory.

Streams of the first two hold Huffman codes alone: there are no repetitions to find.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping
from typing import TypeAlias

import ml_dtypes
import numpy as np

ENTRY = "jaxspec.coded"
# What a coded tensor was: its dtype and shape.
Coded: TypeAlias = tuple[str, tuple[int, ...]]
_DTYPES = {
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "U8": np.dtype(np.uint8),
    "F32": np.dtype(np.float32),
    "I64": np.dtype(np.int64),
    "BOOL": np.dtype(np.bool_),
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_FRACTION, _SIGN = 0x7F, 0x80


def encode(
    tensors: Mapping[str, np.ndarray],
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Code every tensor that gets shorter: what to store, and the metadata that says so."""
    stored, coded = dict(tensors), {}
    for name, tensor in tensors.items():
        if tensor.dtype not in _NAMES:
            continue
        shorter = _encode(np.ascontiguousarray(tensor))
        if len(shorter) < tensor.nbytes:
            stored[name] = shorter
            coded[name] = (_NAMES[tensor.dtype], tensor.shape)
    return stored, {ENTRY: json.dumps(coded)} if coded else {}


def decode(stored: np.ndarray, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Restore a tensor of `shape` from uint8 [bytes].

    Raises:
      ValueError: the bytes are not those of such a tensor.
    """
    size = math.prod(shape)
    if dtype != "BF16":
        own = _DTYPES[dtype]
        return _inflate(stored, size * own.itemsize).view(own).reshape(shape).copy()
    if len(stored) < size:
        raise ValueError(f"{len(stored)} bytes are stored for {size} values")
    words = _inflate(stored[size:], size).astype(np.uint16)
    words <<= 7
    low = stored[:size].astype(np.uint16)
    words |= low & _FRACTION
    low &= _SIGN
    low <<= 8
    words |= low
    return words.view(ml_dtypes.bfloat16).reshape(shape)


def read_entry(metadata: Mapping[str, str] | None) -> dict[str, Coded]:
    """Read which tensors of a file are coded from its metadata.

    Raises:
      ValueError: the entry is damaged.
    """
    try:
        found = json.loads((metadata or {}).get(ENTRY, "{}"))
        read = {name: (dtype, tuple(shape)) for name, (dtype, shape) in found.items()}
    except (ValueError, TypeError, AttributeError):
        raise ValueError(f"{ENTRY} in its header is no table of dtypes and shapes") from None
    for name, (dtype, shape) in read.items():
        if dtype not in _DTYPES or not all(type(n) is int and n >= 0 for n in shape):
            raise ValueError(f"{ENTRY} says that {name} is {dtype} {list(shape)}")
    return read


def _encode(tensor: np.ndarray) -> np.ndarray:
    """Return the bytes to store for a tensor."""
    if tensor.dtype != _DTYPES["BF16"]:
        return _deflate(tensor, tensor.dtype == np.uint8)
    words = tensor.view(np.uint16).ravel()
    low = (words & _FRACTION | words >> 8 & _SIGN).astype(np.uint8)
    return np.concatenate([low, _deflate((words >> 7 & 0xFF).astype(np.uint8), True)])


def _deflate(values: np.ndarray, huffman: bool) -> np.ndarray:
    """Compress bytes; with Huffman codes alone, or with repetitions too."""
    strategy = zlib.Z_HUFFMAN_ONLY if huffman else zlib.Z_DEFAULT_STRATEGY
    stream = zlib.compressobj(9, zlib.DEFLATED, -15, 9, strategy)
    return np.frombuffer(stream.compress(values) + stream.flush(), np.uint8)


def _inflate(stored: np.ndarray, size: int) -> np.ndarray:
    """Read `size` bytes out of a deflate stream, and no more, whatever it holds."""
    stream = zlib.decompressobj(-15)
    try:
        found = stream.decompress(stored, size + 1)
    except zlib.error as error:
        raise ValueError(f"codes cannot be read ({error})") from None
    if len(found) != size or not stream.eof:
        raise ValueError(f"codes hold {len(found)} bytes, and {size} are due")
    return np.frombuffer(found, np.uint8)
