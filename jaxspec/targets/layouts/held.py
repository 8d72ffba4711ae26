"""Weights that files store as a layout holds them: int8 or fp8 with a scale per output channel.

These are read as they are. Other weights in few bits become floats, which take more memory than the
files do.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from jaxspec.io.quantised.tensors import QuantisedTensors, scale_name
from jaxspec.io.weights.weight_map import Leaf
from jaxspec.targets.layouts.quant import COLLECTION, FULL, KINDS, contracted_axis

log = logging.getLogger("jaxspec")


class Plan(NamedTuple):
    """What to read of a target's files.

    Attributes:
      leaves: of the weights; those that are held have the dtype of their values.
      scales: leaves of the scales of held weights, with their own paths below "params".
      read: the tensors that these name.
      quantize: what the other leaves are quantised to after reading; None: nothing.
    """

    leaves: list[Leaf]
    scales: list[Leaf]
    read: Mapping[str, np.ndarray]
    quantize: str | None


def plan_reading(
    leaves: list[Leaf],
    read: Mapping[str, np.ndarray],
    dtype: str,
    quantize: str | None,
    tied: bool,
) -> Plan:
    """Choose the leaves that are held as they are stored, and log what the others gain in size.

    Args:
      leaves: of the target.
      read: its tensors.
      dtype: of the leaves that are not quantised.
      quantize: see `jaxspec.load`.
      tied: whether the embedding table is also the output projection.
    """
    asked = None if quantize == FULL else quantize
    if not isinstance(read, QuantisedTensors):
        return Plan(leaves, [], read, asked)
    kinds = {leaf.path: _find_kind(leaf, read, quantize, tied) for leaf in leaves}
    for _, group in itertools.groupby(
        [leaf.path for leaf in leaves if leaf.stacked], lambda path: path[:-1]
    ):  # a layer's experts are multiplied by one product
        paths = list(group)
        if len({kinds[path] for path in paths}) > 1:
            kinds |= dict.fromkeys(paths)
    held = [leaf for leaf in leaves if kinds[leaf.path]]
    own = [
        leaf._replace(dtype=np.dtype(KINDS[kinds[leaf.path]][0]).name) if leaf in held else leaf
        for leaf in leaves
    ]
    names = {name for leaf in held for name, *_ in leaf.parts()}
    _report(own, read, names, dtype, asked, tied)
    return Plan(own, [_scale_leaf(leaf) for leaf in held], read.hold(names), asked)


def _find_kind(leaf: Leaf, read: QuantisedTensors, quantize: str | None, tied: bool) -> str | None:
    """Return how a leaf is held as it is stored; None if it is not."""
    if quantize == FULL or contracted_axis(leaf.path, tied) is None:
        return None
    names = [name for name, *_ in leaf.parts()]
    if not all(name in read for name in names):  # a later check says so
        return None
    first = read.kind(names[0])
    alike = first is not None and all(read.kind(name) == first for name in names)
    return first if alike and quantize in (None, first) else None


def _scale_leaf(leaf: Leaf) -> Leaf:
    """Describe the scales of a held leaf."""
    return Leaf(
        (COLLECTION, *leaf.path),
        tuple(tuple(map(scale_name, group)) for group in leaf.names),
        tuple(shape[:1] for shape in leaf.shapes),
        stacked=leaf.stacked,
        dtype="float32",
    )


def _report(
    leaves: list[Leaf],
    read: QuantisedTensors,
    held: set[str],
    dtype: str,
    quantize: str | None,
    tied: bool,
) -> None:
    """Log the bytes of the weights, if some are stored in fewer than they take."""
    if not read.quantised - held:
        return
    stored = read.stored_size()

    def size(quantize: str | None) -> str:
        total = 0
        for leaf in leaves:
            short = quantize and contracted_axis(leaf.path, tied) is not None
            own = np.dtype("int8" if short else leaf.dtype or dtype)
            total += math.prod(leaf.array_shape()) * own.itemsize
        return f"{total / 1e9:.3g} GB"

    less = "" if quantize else f" (with quantize='int8': {size('int8')})"
    log.warning(
        "%s: %s weights of %.3g GB take %s as %s%s",
        read.files.directory,
        read.format.name,
        stored / 1e9,
        size(quantize),
        quantize or dtype,
        less,
    )
