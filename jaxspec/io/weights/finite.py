"""Refuse weights that are not finite."""

from __future__ import annotations

import numpy as np

# Values that are compared at a time; a processor's cache holds them.
_BLOCK = 2**18


def is_finite(x: np.ndarray) -> bool:
    """Say whether all values of a float32, float16 or bfloat16 array are finite.

    The exponent bits of NaN and infinities are all set. Integers are compared, since arithmetic on
    two-byte floats is slow.
    """
    bits, sign = (np.uint16, 0x8000) if x.dtype.itemsize == 2 else (np.uint32, 0x80000000)
    exponent = {"float16": 0x7C00, "bfloat16": 0x7F80, "float32": 0x7F800000}[x.dtype.name]
    flat = x.ravel(order="K").view(bits)
    blocks = (flat[start : start + _BLOCK] for start in range(0, flat.size, _BLOCK))
    return all(int((block & bits(sign - 1)).max()) < exponent for block in blocks)


def check_finite(name: str, dtype: str, stored: bool, cast: bool) -> None:
    """Refuse a tensor that is not finite.

    Args:
      name: the tensor's name.
      dtype: name of the dtype that it was cast to.
      stored: whether all stored values are finite.
      cast: whether all values are finite in `dtype`.

    Raises:
      ValueError: one of them is not.
    """
    if not stored:
        raise ValueError(
            f"{name} holds NaN or infinite values: the checkpoint is damaged; "
            "download or export it again"
        )
    if not cast:
        raise ValueError(
            f"{name} does not fit in {dtype}: load it with dtype='float32' or 'bfloat16'"
        )
