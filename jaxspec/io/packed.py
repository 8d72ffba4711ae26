"""Weights in six bits each: integers from -31 to 31 with a float32 scale per output channel.

A matrix `x` [out, in] is stored as `x` uint8 [out, 6, in / 8] and `x.scale` float32 [out]. Plane k
of row i of `x` holds bit k of `value + 32`, eight columns per byte, and `value * scale[i]` is the
weight. Vectors keep their dtype, and so do matrices if their number of columns is not a multiple of
8. Only drafters are packed: they decide how many tokens are accepted, never which tokens are
written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np

# The value of `jaxspec.storage` in the config.json of a packed drafter.
STORAGE = "packed"
BITS = 6
_LARGEST = 2 ** (BITS - 1) - 1
_OFFSET = 2 ** (BITS - 1)


def scale_name(name: str) -> str:
    """Return the name of the tensor that holds the scales of `name`."""
    return f"{name}.scale"


def packed_names(names: Iterable[str], dtype: Callable[[str], str]) -> frozenset[str]:
    """Return the `names` that are stored as bytes and have scales; `dtype` maps name to dtype."""
    names = set(names)
    return frozenset(n for n in names if scale_name(n) in names and dtype(n) == "U8")


def pack(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Pack every float matrix [out, in] of `tensors` and return the others unchanged.

    The largest value of a row becomes 31 or -31.
    """
    stored: dict[str, np.ndarray] = {}
    for name, tensor in tensors.items():
        floats = tensor.dtype.name in ("float32", "float16", "bfloat16")
        if not floats or tensor.ndim != 2 or tensor.shape[1] % 8:
            stored[name] = tensor
            continue
        values = np.asarray(tensor, np.float32)
        scale = np.abs(values).max(axis=1) / _LARGEST
        steps = np.rint(values / np.where(scale > 0, scale, 1)[:, None])
        whole = (steps + _OFFSET).astype(np.uint8)
        planes = (whole[:, None, :] >> np.arange(BITS, dtype=np.uint8)[:, None]) & 1
        stored[name] = np.packbits(planes, axis=-1)
        stored[scale_name(name)] = scale.astype(np.float32)
    return stored


def unpack(stored: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Unpack bytes uint8 [out, 6, in / 8] with scales float32 [out] to float32 [out, in].

    Raises:
      ValueError: one of the two has another shape or dtype.
    """
    unpacked_shape(stored.shape)
    if scale.shape != stored.shape[:1] or scale.dtype != np.float32:
        raise ValueError(
            f"scales of packed weights are {scale.dtype.name} {list(scale.shape)}, and must be "
            f"float32 {list(stored.shape[:1])}: pack the drafter again"
        )
    planes = np.unpackbits(stored, axis=-1) << np.arange(BITS, dtype=np.uint8)[:, None]
    values = planes.sum(axis=1, dtype=np.uint8).astype(np.float32) - np.float32(_OFFSET)
    return values * scale[:, None]


def unpacked_shape(stored: tuple[int, ...]) -> tuple[int, int]:
    """Return (out, in) of a matrix stored in the shape `stored`.

    Raises:
      ValueError: no packed matrix has this shape.
    """
    if len(stored) != 3 or stored[1] != BITS:
        raise ValueError(
            f"packed weights have the shape {list(stored)}, and must be [out, {BITS}, in / 8]: "
            "pack the drafter again"
        )
    return stored[0], 8 * stored[2]
