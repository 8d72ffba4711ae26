"""Assemble an array of the parameter tree from pieces of stored tensors.

Two classes do it. `DeviceArray` uploads the stored bytes and lets the device transpose, cast and
check them. `HostArray` does it on the host, for a CPU and for small arrays. On a CPU, XLA's loops
transpose 0.2 to 0.9 GB/s on one core and take new memory in small pages; PJRT's own transposition
of an upload and NumPy's memory in large pages are several times as fast.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.io.files.read_ahead import allocate
from jaxspec.io.files.tensors import is_finite
from jaxspec.io.weights.weight_map import Leaf

# Below this, NumPy transposes faster than an upload starts.
_PJRT_BYTES = 2**16


class Piece(NamedTuple):
    """Some rows of a stored tensor, and their place.

    Attributes:
      name: the tensor's name.
      start: first row.
      stop: one past the last row.
      size: bytes of the stored rows, or the most that they can be.
      at: index in the array of the leaf where the piece, transposed if the leaf is, begins.
    """

    name: str
    start: int
    stop: int
    size: int
    at: tuple[int, ...]


class Assembly(Protocol):
    """An array that is being assembled.

    Attributes:
      in_flight: number of pieces whose rows may be in use after `write` has returned.
    """

    in_flight: int

    def write(self, piece: Piece, rows: np.ndarray) -> tuple[Any, ...]:
        """Write a piece.

        Args:
          rows: the stored rows. They may be in use until the result is there.

        Returns:
          Whether the rows are finite as stored, if that is checked here; and when cast, if the cast
          may overflow. On a device these are scalars that may not have been computed yet.
        """
        ...

    def finish(self) -> jax.Array:
        """Return the array on the default device."""
        ...


class HostArray:
    """Assembles on the host. Whoever reads the rows checks that they are finite.

    Args:
      leaf: the leaf of the array.
      dtype: dtype of the array.
      on_cpu: whether the default device is a CPU, which then takes the array without a copy.
    """

    in_flight = 0

    def __init__(self, leaf: Leaf, dtype: np.dtype, on_cpu: bool):
        self._array = allocate(leaf.array_shape(), dtype)
        self._transpose, self._on_cpu = leaf.transpose, on_cpu

    def write(self, piece: Piece, rows: np.ndarray) -> tuple[bool, ...]:
        """Write a piece, see `Assembly`."""
        finite: tuple[bool, ...] = ()
        part = self._transposed(rows) if self._transpose else rows
        if _may_overflow(part.dtype, self._array.dtype):
            with np.errstate(over="ignore"):
                part = part.astype(self._array.dtype)
            finite = (is_finite(part),)
        lead = self._array.ndim - part.ndim
        ends = (1,) * lead + part.shape
        place = tuple(slice(at, at + size) for at, size in zip(piece.at, ends, strict=True))
        self._array[place] = part
        return finite

    def finish(self) -> jax.Array:
        """Return the array, see `Assembly`."""
        return jax.device_put(self._array)

    def _transposed(self, rows: np.ndarray) -> np.ndarray:
        if not self._on_cpu or rows.nbytes < _PJRT_BYTES:
            return rows.swapaxes(-1, -2)
        return np.asarray(jax.device_put(rows.swapaxes(-1, -2)))


class DeviceArray:
    """Assembles on the default device.

    Args:
      leaf: the leaf of the array.
      dtype: dtype of the array.
    """

    in_flight = 2

    def __init__(self, leaf: Leaf, dtype: np.dtype):
        self._array = jnp.zeros(leaf.array_shape(), dtype)
        self._transpose = leaf.transpose

    def write(self, piece: Piece, rows: np.ndarray) -> tuple[jax.Array, ...]:
        """Write a piece, see `Assembly`."""
        at = np.asarray(piece.at, np.int32)
        self._array, finite = write_rows(self._array, rows, at, transpose=self._transpose)
        return finite

    def finish(self) -> jax.Array:
        """Return the array, see `Assembly`."""
        return self._array


@functools.partial(jax.jit, static_argnames="transpose", donate_argnums=0)
def write_rows(
    array: jax.Array, rows: jax.Array, at: jax.Array, *, transpose: bool
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    """Write stored rows into an array that is donated.

    Args:
      array: the array of a leaf.
      rows: rows of a stored tensor, in their stored dtype.
      at: int32 [axes of `array`], the index where the rows begin.
      transpose: whether to write the transposed rows, or transposed matrices.

    Returns:
      The array, and whether the rows are finite, see `Assembly`.
    """
    part = (rows.swapaxes(-1, -2) if transpose else rows).astype(array.dtype)
    checked = (rows, part) if _may_overflow(rows.dtype, array.dtype) else (rows,)
    finite = tuple(jnp.isfinite(values).all() for values in checked)
    part = part.reshape((1,) * (array.ndim - part.ndim) + part.shape)
    return jax.lax.dynamic_update_slice(array, part, tuple(at)), finite


def _may_overflow(stored: np.dtype, dtype: np.dtype) -> bool:
    """Say whether finite values of a dtype of weights may be infinite in another."""
    return stored != dtype and dtype != np.float32
