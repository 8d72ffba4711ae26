"""Load a parameter tree from stored tensors.

A thread reads pieces of tensors ahead into a few buffers. The main thread hands them to the device,
or assembles them on the host, see `jaxspec.io.weights.assemble`. So host memory beyond the tree is
that of the buffers, whatever the sizes of tensors and files.
"""

from __future__ import annotations

import collections
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.io.files.read_ahead import Read, ReadAhead
from jaxspec.io.files.tensors import (
    RowReader,
    check_finite,
    find_row_reader,
    is_finite,
    weight_dtype,
)
from jaxspec.io.files.tensors import count_bytes as item_size
from jaxspec.io.progress import count_bytes, expect_bytes
from jaxspec.io.weights.assemble import Assembly, DeviceArray, HostArray, Piece
from jaxspec.io.weights.weight_map import Leaf, check_fit, check_float

# Bytes of a piece: what a processor's caches hold, and what an upload is efficient with.
_HOST_PIECE, _DEVICE_PIECE = 2**22, 2**24
# Leaves of one shape are assembled on the device if they have as many elements together. For fewer,
# the compilation would take longer than the host does.
_DEVICE_ELEMENTS = 2**25
# Trees of as many bytes are read in a thread.
_THREAD_BYTES = 2**25


class _Plan(NamedTuple):
    """How a leaf is read: whether the device assembles it, and from which pieces."""

    leaf: Leaf
    on_device: bool
    pieces: list[Piece]


def read_tree(
    leaves: list[Leaf],
    read: Mapping[str, np.ndarray],
    dtype: str,
    ignore: Callable[[str], bool] = lambda name: False,
    place: Callable[[Leaf, jax.Array], Any] = lambda leaf, array: array,
) -> dict[str, Any]:
    """Read {"params": tree} to the default device.

    Args:
      leaves: the table.
      read: tensors by name, `Tensors` of files or a dict.
      dtype: `float32`, `float16` or `bfloat16`.
      ignore: says whether a tensor of this name may be present unused.
      place: makes what stands in the tree from the leaf's array.

    Raises:
      WeightMismatch: tensors are missing, unexpected, misshapen or not floats; reports all of them.
      ValueError: a file is damaged, a tensor holds NaN or infinity, or overflows `dtype`.
    """
    check_fit(leaves, read, ignore)
    target, on_cpu = weight_dtype(dtype), _runs_on_cpu()
    plans = _make_plans(leaves, read, on_cpu)
    sizes = [piece.size for plan in plans for piece in plan.pieces]
    total, largest = sum(sizes), max(sizes, default=0)
    expect_bytes(total)
    tree: dict[str, Any] = {}
    with ReadAhead(_list_reads(plans, read), largest, total >= _THREAD_BYTES) as ahead:
        flight = _Flight(ahead, target.name)
        for plan in plans:
            own = np.dtype(np.float32 if plan.leaf.wide else plan.leaf.dtype or target)
            array: Assembly = (
                DeviceArray(plan.leaf, own) if plan.on_device else HostArray(plan.leaf, own, on_cpu)
            )
            for piece in plan.pieces:
                (rows, checked), memory = ahead.take()
                finite = (*checked, *array.write(piece, rows))
                flight.add(piece.name, finite, memory, array.in_flight)
                count_bytes(rows.nbytes)
            whole = array.finish()
            if plan.leaf.alternating:
                whole = _sort_halves(whole)
            _insert(tree, plan.leaf.path, place(plan.leaf, whole))
        flight.land(0)
    return {"params": tree}


@functools.partial(jax.jit, donate_argnums=0)
def _sort_halves(array: jax.Array) -> jax.Array:
    """Put the entries of even places of the last axis before those of odd places."""
    return jnp.concatenate([array[..., 0::2], array[..., 1::2]], axis=-1)


class _Flight:
    """Pieces that the device may not have read yet, oldest first."""

    def __init__(self, ahead: ReadAhead, dtype: str):
        self._ahead, self._dtype = ahead, dtype
        self._pieces: collections.deque[tuple[str, tuple, np.ndarray]] = collections.deque()

    def add(self, name: str, finite: tuple, memory: np.ndarray, most: int) -> None:
        """Add a piece, and wait until at most `most` are left."""
        self._pieces.append((name, finite, memory))
        self.land(most)

    def land(self, most: int) -> None:
        """Wait until at most `most` pieces are left; check the others and release their memory.

        Raises:
          ValueError: a piece is not finite.
        """
        while len(self._pieces) > most:
            name, finite, memory = self._pieces.popleft()
            check_finite(name, self._dtype, bool(finite[0]), bool(finite[-1]))
            self._ahead.release(memory)


def _make_plans(leaves: list[Leaf], read: Mapping[str, np.ndarray], on_cpu: bool) -> list[_Plan]:
    elements: collections.Counter = collections.Counter()
    for leaf in leaves:
        elements[_shape_class(leaf)] += math.prod(leaf.array_shape())
    plans = []
    for leaf in leaves:
        on_device = not on_cpu and elements[_shape_class(leaf)] >= _DEVICE_ELEMENTS
        limit = _DEVICE_PIECE if on_device else _HOST_PIECE
        plans.append(_Plan(leaf, on_device, list(_list_pieces(leaf, read, limit, on_device))))
    return plans


def _shape_class(leaf: Leaf) -> tuple:
    """Return what leaves share that the device assembles with the same programs."""
    return leaf.array_shape(), leaf.shapes, leaf.transpose, leaf.dtype


def _list_pieces(
    leaf: Leaf, read: Mapping[str, np.ndarray], limit: int, alike: bool
) -> Iterator[Piece]:
    """Cut a leaf's tensors into pieces of at most `limit` bytes, of one row at least.

    The pieces of a tensor, or of the leaf if they are to be `alike`, have the same number of rows,
    so that one program serves them: a tensor's last piece may repeat rows of the one before.
    """
    shape, fewest = leaf.array_shape(), min(stored[0] for stored in leaf.shapes)
    for name, group, columns, stored in leaf.parts():
        row = math.prod(stored[1:]) * _item_size(read, name)
        count = fewest if alike else stored[0]
        rows = max(math.ceil(count / max(math.ceil(count * row / limit), 1)), 1)
        for start in range(0, stored[0], rows):
            first = min(start, stored[0] - rows)
            at = [0] * len(shape)
            if leaf.stacked:
                at[0] = group
            at[-1] = columns.start
            matrix = leaf.transpose and len(stored) == 2
            at[-1 if matrix else len(shape) - len(stored)] += first
            yield Piece(name, first, first + rows, rows * row, tuple(at))


def _list_reads(plans: list[_Plan], read: Mapping[str, np.ndarray]) -> Iterator[Read]:
    """List the reads of all pieces. A tensor is opened once, when it is its turn."""
    for plan in plans:
        name = None
        for piece in plan.pieces:
            if piece.name != name:
                name, reader = piece.name, find_row_reader(read, piece.name)
            yield functools.partial(_read_piece, piece, reader, plan)


def _read_piece(
    piece: Piece, reader: RowReader, plan: _Plan, memory: np.ndarray
) -> tuple[np.ndarray, tuple[bool, ...]]:
    """Read the rows of a piece; return them and, unless the device checks it, if they are finite."""
    rows = reader(piece.start, piece.stop, memory)
    if plan.leaf.dtype is None:
        check_float(piece.name, rows)
    return rows, () if plan.on_device else (is_finite(rows),)


def _item_size(read: Mapping[str, np.ndarray], name: str) -> int:
    """Return the bytes of a stored value, or the most that they can be for a dict of arrays."""
    return item_size(read.dtype(name)) if hasattr(read, "dtype") else 4


def _insert(tree: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for key in path[:-1]:
        tree = tree.setdefault(key, {})
    tree[path[-1]] = value


def _runs_on_cpu() -> bool:
    return next(iter(jnp.zeros(0).devices())).platform == "cpu"
