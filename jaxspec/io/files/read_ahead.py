"""Read in a thread, a few results ahead, into memory that is used again.

`allocate` makes host arrays that XLA on a CPU takes without a copy.
"""

from __future__ import annotations

import math
import mmap
import queue
import threading
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

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


# Memory of this many results: one is being read, two may be in use, one is ready.
BUFFERS = 4

# Memory, uint8 [size] -> a result, which may use that memory.
Read: TypeAlias = Callable[[np.ndarray], Any]


class ReadAhead:
    """Runs reads in order in a thread.

    At most `BUFFERS` results exist at a time: the thread waits until one is released. Use it in a
    `with` statement, whose end stops the thread.

    Args:
      reads: the thread iterates over them.
      size: bytes that the largest result needs.
      in_thread: whether to read ahead at all; otherwise `take` reads. For a few megabytes, waking
        the thread takes longer than it saves.
    """

    def __init__(self, reads: Iterable[Read], size: int, in_thread: bool = True):
        self._reads, self._in_thread, self._stopped = iter(reads), in_thread, False
        self._free: queue.SimpleQueue = queue.SimpleQueue()
        self._ready: queue.SimpleQueue = queue.SimpleQueue()
        for _ in range(BUFFERS):
            self._free.put(allocate((size,), np.dtype(np.uint8)))
        self._thread = threading.Thread(target=self._run, name="jaxspec-read", daemon=True)

    def __enter__(self) -> ReadAhead:
        if self._in_thread:
            self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._in_thread:
            self._stopped = True
            self._free.put(None)  # in case that the thread waits for memory
            self._thread.join()

    def take(self) -> tuple[Any, np.ndarray]:
        """Wait for the next result; return it and the memory to `release`.

        Raises whatever the read has raised.
        """
        if not self._in_thread:
            memory = self._free.get_nowait()
            return next(self._reads)(memory), memory
        found = self._ready.get()
        if isinstance(found, BaseException):
            raise found
        return found

    def release(self, memory: np.ndarray) -> None:
        """Give memory back. Nothing may use the result any more."""
        self._free.put(memory)

    def _run(self) -> None:
        try:
            for read in self._reads:
                memory = self._free.get()
                if self._stopped:
                    return
                self._ready.put((read(memory), memory))
        except BaseException as error:  # `take` raises it in the thread that wants the result
            self._ready.put(error)
        else:
            self._ready.put(EOFError("there are no more results"))
