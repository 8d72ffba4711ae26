"""Integers of few bits in int32 words, and the sixteen numbers of FP4."""

from __future__ import annotations

import numpy as np

# OCP Microscaling Formats 1.0, section 5.3.3 (E2M1): a sign, two bits of exponent, one of fraction.
FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
FP4 = np.concatenate([FP4, -FP4])
# Exponents of E8M0 scales count from here.
E8M0_BIAS = 127


def unpack(words: np.ndarray, bits: int, count: int) -> np.ndarray:
    """Unpack unsigned integers of `bits` bits along the last axis.

    The words of a row are one stream of bits, of which value i takes the bits from `i * bits` on,
    the lowest first. So values may cross words, as those of 3 bits do.

    Args:
      words: int32 [..., W], or any other integers.
      bits: 1 to 8.
      count: values of a row.

    Returns:
      uint8 [..., count].
    """
    stream = np.ascontiguousarray(words).view(np.uint8)
    if bits == 8:
        return stream[..., :count]
    if 8 % bits:
        ones = np.unpackbits(stream, axis=-1, count=count * bits, bitorder="little")
        ones = ones.reshape(*stream.shape[:-1], count, bits)
        return np.packbits(ones, axis=-1, bitorder="little")[..., 0]
    mask, values = (1 << bits) - 1, np.empty((*stream.shape, 8 // bits), np.uint8)
    for i in range(8 // bits):
        np.right_shift(stream, i * bits, out=values[..., i])
    values &= mask
    return values.reshape(*stream.shape[:-1], -1)[..., :count]


def unpack_fp4(stored: np.ndarray) -> np.ndarray:
    """Unpack FP4 numbers, two a byte, the first in its low bits.

    Args:
      stored: uint8 [..., N].

    Returns:
      float32 [..., 2N].
    """
    return FP4[unpack(stored, 4, 2 * stored.shape[-1])]


def power_of_two(exponents: np.ndarray) -> np.ndarray:
    """Return the float32 scales that E8M0 bytes stand for: 2**(byte - 127)."""
    return np.ldexp(np.float32(1), exponents.astype(np.int32) - E8M0_BIAS)
