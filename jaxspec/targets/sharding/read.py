"""Read a target from its files, each device's share by itself.

A process reads what its own devices hold, and host memory holds one layer of one device.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.sharding import Mesh, NamedSharding

from jaxspec.core.config import TargetConfig
from jaxspec.io.files.tensors import Blocks, Tensors
from jaxspec.io.weights.load_tree import read_tree
from jaxspec.io.weights.weight_map import Leaf, check_fit
from jaxspec.targets.layouts import quant
from jaxspec.targets.layouts.held import plan_reading
from jaxspec.targets.sharding.place import order, replicate
from jaxspec.targets.sharding.shares import Split, find_split
from jaxspec.targets.weights import ignored, target_leaves


def read_shared(
    stored: Tensors, config: TargetConfig, dtype: str, quantize: str | None, mesh: Mesh
) -> dict[str, Any]:
    """Read variables of a target to the devices that share it, as `sharding.place.shard` places
    them.

    Args:
      stored: tensors by Hugging Face name.
      config, dtype, quantize: see `jaxspec.targets.weights.from_hf`.
      mesh: from `jaxspec.core.mesh.check_mesh`.

    Raises:
      WeightMismatch, ValueError: see `jaxspec.targets.weights.from_hf`.
    """
    if quantize == quant.INT4:
        raise ValueError(
            "devices cannot share weights of four bits: load them with quantize='int8', or without "
            "mesh"
        )
    leaves, tied = target_leaves(config), config.tie_embeddings
    check_fit(leaves, stored, ignored(config, stored))
    if tied:
        leaves.append(_tied_head(leaves, config))
    plan = plan_reading(leaves, stored, dtype, quantize, tied)
    values: dict[tuple[str, ...], jax.Array] = {}
    scales: dict[tuple[str, ...], jax.Array] = {}
    # A layer at a time, so that the host holds little.
    for _, group in itertools.groupby(plan.leaves, lambda leaf: leaf.path[0]):
        for leaf, array in _read_group(list(group), plan.read, config, dtype, mesh):
            split = find_split(leaf.path, config, mesh.size)
            axis = quant.contracted_axis(leaf.path, tied)
            values[leaf.path] = array
            if plan.quantize and axis is not None and not leaf.dtype:
                axis -= split.order is not None  # there is an axis of devices
                values[leaf.path], scales[leaf.path] = jax.block_until_ready(
                    quant.quantize(array, plan.quantize, axis)
                )
    found = _read(plan.scales, plan.read, dtype)["params"].get(quant.COLLECTION, {})
    for path, array in flatten_dict(found).items():
        split = find_split(path, config, mesh.size, scale=True)
        own = np.asarray(order(array, split))
        scales[path] = jax.device_put(own, NamedSharding(mesh, split.spec(own.ndim)))
    variables = {"params": unflatten_dict(values)}
    return variables | ({quant.COLLECTION: unflatten_dict(scales)} if scales else {})


def _tied_head(leaves: list[Leaf], config: TargetConfig) -> Leaf:
    """Describe the output projection that is the embedding table."""
    table = next(leaf for leaf in leaves if leaf.path == ("embedding",))
    return Leaf(("lm_head",), table.names, table.shapes, transpose=True)


def _read_group(
    leaves: list[Leaf], stored: Tensors, config: TargetConfig, dtype: str, mesh: Mesh
) -> Iterator[tuple[Leaf, jax.Array]]:
    """Read some leaves; yield each with its array on all devices."""
    splits = [find_split(leaf.path, config, mesh.size) for leaf in leaves]
    whole = [leaf for leaf, split in zip(leaves, splits, strict=True) if split.axis is None]
    shared = [pair for pair in zip(leaves, splits, strict=True) if pair[1].axis is not None]
    found = flatten_dict(_read(whole, stored, dtype)["params"])
    for leaf in whole:
        yield leaf, replicate(found[leaf.path], mesh)
    for leaf, split in [pair for pair in shared if _lies_as_it_is(pair[0])]:
        yield leaf, _cut_array(_read([leaf], stored, dtype)["params"], leaf, split, mesh)
    shared = [pair for pair in shared if not _lies_as_it_is(pair[0])]
    parts: dict[tuple[str, ...], list[jax.Array]] = {leaf.path: [] for leaf, _ in shared}
    for number, device in enumerate(mesh.devices.flat):
        if device.process_index != jax.process_index():
            continue
        with jax.default_device(device):
            for path, array in _read_share(shared, stored, dtype, number, mesh.size).items():
                parts[path].append(array)
    for leaf, split in shared:
        yield leaf, _join(parts[leaf.path], split, mesh)


def _lies_as_it_is(leaf: Leaf) -> bool:
    """Whether a leaf is one tensor of several axes that the file holds as the tree does.

    Its shares are no rows or columns of a matrix: gpt-oss's experts are such.
    """
    axes = len(leaf.shapes[0])
    return axes > 2 or (axes > 1 and not (leaf.transpose or leaf.stacked))


def _cut_array(tree: dict[str, Any], leaf: Leaf, split: Split, mesh: Mesh) -> jax.Array:
    """Give each device its share of a leaf that was read whole."""
    whole = np.asarray(order(flatten_dict(tree)[leaf.path], split))
    placed = NamedSharding(mesh, split.spec(whole.ndim))
    return jax.make_array_from_callback(whole.shape, placed, lambda at: whole[at])


def _read_share(
    shared: list[tuple[Leaf, Split]], stored: Tensors, dtype: str, number: int, devices: int
) -> dict[tuple[str, ...], jax.Array]:
    """Read what device `number` of `devices` holds of some leaves."""
    leaves, blocks, empty = [], {}, {}
    for leaf, split in shared:
        own, places = cut_leaf(leaf, split, number, devices)
        if places:
            leaves.append(own)
            blocks |= places
        else:
            empty[leaf.path] = jnp.zeros(own.array_shape(), dtype)
    found = flatten_dict(_read(leaves, Blocks(stored, blocks), dtype)["params"])
    axes = {leaf.path: split.order is not None for leaf, split in shared}
    return {
        path: array[..., None, :] if axes[path] else array
        for path, array in (found | empty).items()
    }


def cut_leaf(
    leaf: Leaf, split: Split, number: int, devices: int
) -> tuple[Leaf, dict[str, tuple[slice, slice | None]]]:
    """Describe one device's part of a leaf.

    Returns:
      (the leaf with the shapes of the part; {tensor: its rows and columns}, empty if the part is
      zeros).
    """
    if split.axis == -3:  # experts
        size = len(leaf.names) // devices
        own = leaf._replace(names=leaf.names[number * size : (number + 1) * size])
        return own, {name: (slice(0, shape[0]), None) for name, _, _, shape in own.parts()}
    if split.axis == -2:  # inputs, which the files store as columns
        size = leaf.shapes[0][1] // devices
        columns = slice(number * size, (number + 1) * size)
        shapes = tuple((outputs, size) for outputs, _ in leaf.shapes)
        blocks = {name: (slice(0, shape[0]), columns) for name, _, _, shape in leaf.parts()}
        return leaf._replace(shapes=shapes), blocks
    places = split.order
    if places is None:
        places = np.arange(leaf.array_shape()[-1]).reshape(devices, -1)
    places = places[number]
    if (places < 0).all():
        return leaf, {}
    rows, end = [], 0
    for shape in leaf.shapes:
        start, end = end, end + shape[0]
        own = places[(places >= start) & (places < end)] - start
        rows.append(slice(int(own[0]), int(own[-1]) + 1))
    shapes = tuple(
        (part.stop - part.start, *shape[1:]) for part, shape in zip(rows, leaf.shapes, strict=True)
    )
    blocks = {
        name: (part, None) for names in leaf.names for name, part in zip(names, rows, strict=True)
    }
    return leaf._replace(shapes=shapes), blocks


def _read(leaves: list[Leaf], stored: Tensors, dtype: str) -> dict[str, Any]:
    """Read leaves of which `stored` may hold more tensors."""
    return read_tree(leaves, stored, dtype, ignore=lambda name: True)


def _join(parts: list[jax.Array], split: Split, mesh: Mesh) -> jax.Array:
    """Make one array of what this process's devices hold of it."""
    spec = split.spec(parts[0].ndim)
    shape = list(parts[0].shape)
    shape[len(spec) - 1] *= mesh.size
    return jax.make_array_from_single_device_arrays(tuple(shape), NamedSharding(mesh, spec), parts)
