"""Weights in six bits each: integers from -31 to 31 with a float32 scale per output channel.

A matrix `x` [out, in] is stored as `x` uint8 [out, in] and `x.scale` float32 [out]: `x` holds
`value + 32`, and `value * scale[i]` is the weight. Where there are rows of zeros, whose scale is 0,
`x` may have the other rows only: a Markov head has a row for every token of the target, and few of
them are trained. Vectors keep their dtype. Files hold `x` in codes of some five bits, see
`jaxspec.io.files.coded`. Only drafters are packed: they decide how many tokens are accepted, never
which tokens are written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np

# The value of `jaxspec.storage` in the config.json of a packed drafter.
STORAGE = "packed"
_LARGEST, _OFFSET = 31, 32


def scale_name(name: str) -> str:
    """Return the name of the tensor that holds the scales of `name`."""
    return f"{name}.scale"


def packed_names(names: Iterable[str], dtype: Callable[[str], str]) -> frozenset[str]:
    """Return the `names` that are stored as bytes and have scales; `dtype` maps name to dtype."""
    names = set(names)
    return frozenset(n for n in names if scale_name(n) in names and dtype(n) == "U8")


def pack(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Pack every float matrix [out, in] of `tensors` and return the others unchanged.

    The largest value of a row becomes 31 or -31. Rows of zeros are left out.
    """
    stored: dict[str, np.ndarray] = {}
    for name, tensor in tensors.items():
        floats = tensor.dtype.name in ("float32", "float16", "bfloat16")
        if not floats or tensor.ndim != 2:
            stored[name] = tensor
            continue
        values = np.asarray(tensor, np.float32)
        scale = (np.abs(values).max(axis=1) / _LARGEST).astype(np.float32)
        kept = scale != 0
        steps = np.rint(values[kept] / scale[kept, None])
        stored[name] = (steps + _OFFSET).astype(np.uint8)
        stored[scale_name(name)] = scale
    return stored


def unpack(stored: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Unpack steps uint8 [rows, in] with scales float32 [out] to float32 [out, in].

    Raises:
      ValueError: one of the two has another shape or dtype.
    """
    _, columns = unpacked_shape(stored.shape, scale.shape)
    # A file has all rows, or those whose scale is not 0.
    kept = np.flatnonzero(scale) if len(stored) < len(scale) else np.arange(len(scale))
    if len(stored) != len(kept) or scale.dtype != np.float32:
        raise ValueError(
            f"scales of packed weights are {scale.dtype.name} {list(scale.shape)}, {len(kept)} of "
            f"them for rows, and must be float32 for {len(stored)} rows: pack the drafter again"
        )
    values = stored.astype(np.float32) - np.float32(_OFFSET)
    whole = np.zeros((len(scale), columns), np.float32)
    whole[kept] = values * scale[kept, None]
    return whole


def unpacked_shape(stored: tuple[int, ...], scales: tuple[int, ...]) -> tuple[int, int]:
    """Return (out, in) of a matrix stored in the shape `stored`, with scales of the shape `scales`.

    Raises:
      ValueError: no packed matrix has this shape.
    """
    if len(stored) != 2 or len(scales) != 1:
        raise ValueError(
            f"packed weights have the shape {list(stored)} and scales {list(scales)}, and must be "
            "[rows, in] and [out]: pack the drafter again"
        )
    return scales[0], stored[1]
