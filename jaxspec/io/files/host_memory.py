"""Allocate host arrays that XLA on a CPU takes without a copy."""

from __future__ import annotations

import math
import mmap

import numpy as np

# XLA uses memory of others as it is if it begins at such an address.
_ALIGNMENT = 64
# Large arrays are mapped apart, in large pages: the first use of a small page takes as long as
# writing it, and arrays between those of other allocations leave holes when they are freed.
_LARGE_PAGE = 2**21
_MAPS_LARGE_PAGES = hasattr(mmap, "MADV_HUGEPAGE")


def allocate(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Allocate an array without values."""
    size = math.prod(shape) * dtype.itemsize
    large = _MAPS_LARGE_PAGES and size >= _LARGE_PAGE // 2
    alignment = _LARGE_PAGE if large else _ALIGNMENT
    memory = _map_large_pages(size + alignment) if large else np.empty(size + alignment, np.uint8)
    start = -memory.ctypes.data % alignment
    return memory[start : start + size].view(dtype).reshape(shape)


def _map_large_pages(size: int) -> np.ndarray:
    """Map new memory, uint8 [size]; it is unmapped with the last array that uses it."""
    mapped = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    mapped.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(mapped, np.uint8)
