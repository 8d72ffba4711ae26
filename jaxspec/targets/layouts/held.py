"""Weights that files store as a layout holds them: int8, fp8 or four bits, with their scales.

These are read as they are. Other weights in few bits become floats, which take more memory than the
files do.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Mapping
from typing import NamedTuple

import jax
import numpy as np

from jaxspec.io.quantised.held import HeldTensors, scale_name, zero_name
from jaxspec.io.quantised.matrix import Groups
from jaxspec.io.quantised.tensors import QuantisedTensors
from jaxspec.io.weights.weight_map import Leaf
from jaxspec.targets.layouts.quant import (
    COLLECTION,
    FOUR_BITS,
    FULL,
    INT4,
    KINDS,
    contracted_axis,
)

log = logging.getLogger("jaxspec")


class Plan(NamedTuple):
    """What to read of a target's files.

    Attributes:
      leaves: of the weights; those that are held have the dtype and shapes of what is stored.
      scales: leaves of the scales of held weights, with their collection before their own paths.
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

    Raises:
      ValueError: four bits are asked for, and no tensor is stored so.
    """
    asked = None if quantize in (FULL, INT4) else quantize
    quantised = isinstance(read, QuantisedTensors)
    four = _find_groups(leaves, read) if quantised and quantize == INT4 else {}
    if quantize == INT4 and not four:
        raise ValueError(
            "quantize='int4' keeps weights that a checkpoint stores in four bits, in groups of "
            "inputs that follow one another, and this one has none: choose int8 or fp8"
        )
    if not quantised:
        return Plan(leaves, [], read, asked)
    kinds = _find_kinds(leaves, read, quantize, tied)
    held = [leaf for leaf in leaves if kinds[leaf.path]]
    own = [_value_leaf(leaf, kinds[leaf.path], four.get(leaf.path)) for leaf in leaves]
    scales = [_scale_leaf(leaf) for leaf in held]
    scales += [_group_leaf(leaf, four[leaf.path]) for leaf in leaves if leaf.path in four]
    bytes = {name for leaf in held for name, *_ in leaf.parts()}
    halves = {name for leaf in leaves if leaf.path in four for name, *_ in leaf.parts()}
    if read.quantised - bytes - halves:
        _report(own, read, dtype, asked, tied)
    return Plan(own, scales, HeldTensors(read, bytes, halves), asked)


def _find_kinds(
    leaves: list[Leaf], read: QuantisedTensors, quantize: str | None, tied: bool
) -> dict[tuple[str, ...], str | None]:
    """Find which leaves are held in one byte each: `int8`, `fp8` or None by path."""
    kinds = {leaf.path: _find_kind(leaf, read, quantize, tied) for leaf in leaves}
    for _, group in itertools.groupby(
        [leaf.path for leaf in leaves if leaf.stacked], lambda path: path[:-1]
    ):  # a layer's experts are multiplied by one product
        paths = list(group)
        if len({kinds[path] for path in paths}) > 1:
            kinds |= dict.fromkeys(paths)
    return kinds


def _find_kind(leaf: Leaf, read: QuantisedTensors, quantize: str | None, tied: bool) -> str | None:
    if quantize == FULL or contracted_axis(leaf.path, tied) is None:
        return None
    names = [name for name, *_ in leaf.parts()]
    if not all(name in read for name in names):  # a later check says so
        return None
    first = read.kind(names[0])
    alike = first is not None and all(read.kind(name) == first for name in names)
    return first if alike and quantize in (None, INT4, first) else None


def _find_groups(leaves: list[Leaf], read: QuantisedTensors) -> dict[tuple[str, ...], Groups]:
    """Find the groups of the projections and experts that can be held in four bits, by path.

    The output projection has no product by such weights.
    """
    found = {}
    for leaf in leaves:
        names = [name for name, *_ in leaf.parts()]
        projects = leaf.stacked or leaf.path[-1] == "kernel"
        if not projects or not all(name in read for name in names):
            continue
        groups = [read.groups(name) for name in names]
        if None in groups or len({one._replace(dtype="") for one in groups}) > 1:
            continue
        inputs = leaf.shapes[0][1]
        if groups[0].inputs % 2 == 0 and inputs % groups[0].inputs == 0:
            alike = len({one.dtype for one in groups}) == 1
            found[leaf.path] = groups[0] if alike else groups[0]._replace(dtype="float32")
    return found


def _value_leaf(leaf: Leaf, kind: str | None, groups: Groups | None) -> Leaf:
    """Describe a leaf as it is held."""
    if groups is not None:
        shapes = tuple((outputs, inputs // 2) for outputs, inputs in leaf.shapes)
        return leaf._replace(shapes=shapes, dtype="uint8")
    return leaf if kind is None else leaf._replace(dtype=np.dtype(KINDS[kind][0]).name)


def _scale_leaf(leaf: Leaf) -> Leaf:
    """Describe the scales of a leaf that is held in one byte each."""
    return Leaf(
        (COLLECTION, *leaf.path),
        tuple(tuple(map(scale_name, group)) for group in leaf.names),
        tuple(shape[:1] for shape in leaf.shapes),
        stacked=leaf.stacked,
        dtype="float32",
    )


def _group_leaf(leaf: Leaf, groups: Groups) -> Leaf:
    """Describe the scales, and the zero points of integers, of a leaf that is held in four bits.

    Those of an expert follow one another, see `shape_groups`.
    """
    rows = [scale_name] if groups.numbers == "fp4" else [scale_name, zero_name]
    return Leaf(
        (FOUR_BITS, *leaf.path),
        tuple(tuple(map(row, names)) for names in leaf.names for row in rows),
        tuple((inputs // groups.inputs, outputs) for outputs, inputs in leaf.shapes),
        stacked=True,
        dtype=groups.dtype,
    )


def shape_groups(leaf: Leaf, array: jax.Array) -> jax.Array:
    """Give the scales of weights of four bits their shape.

    Args:
      leaf: one of `Plan.scales`.
      array: its array, [2 X, G, out] or [X, G, out] of X experts.

    Returns:
      [X, 2 or 1, G, out] of experts; others, and scales of one byte, as they are.
    """
    if leaf.path[0] != FOUR_BITS or leaf.path[-1] == "kernel":
        return array
    zeros = leaf.names[1][0] == zero_name(leaf.names[0][0].removesuffix(scale_name("")))
    return array.reshape(-1, 2 if zeros else 1, *array.shape[1:])


def _report(
    leaves: list[Leaf], read: QuantisedTensors, dtype: str, quantize: str | None, tied: bool
) -> None:
    """Log the bytes of weights of which some take more than in the files."""

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
        read.stored_size() / 1e9,
        size(quantize),
        quantize or dtype,
        less,
    )
