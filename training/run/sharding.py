"""Place the arrays of a training run: a mesh of devices, sharded parameters, split batches, hosts.

The mesh has the axes ("data", "fsdp"). A batch is split over both. Parameters and optimizer state
are split over "fsdp" (ZeRO, Rajbhandari et al. 2020): XLA gathers a layer's weights where they are
used and scatters the sums of its gradients.
"""

from __future__ import annotations

import math

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

AXES = ("data", "fsdp")
# Elements. Smaller leaves (norms, biases, counters) cost less to replicate than to gather.
SMALL = 1024


def make_mesh(data: int, fsdp: int) -> Mesh:
    """Make a mesh of `data` x `fsdp` devices.

    A single process uses its first devices, several processes use all of theirs.

    Raises:
      ValueError: there are too few devices, or devices of another process would be left out.
    """
    found, count = jax.device_count(), data * fsdp
    if data < 1 or fsdp < 1 or found < count:
        raise ValueError(
            f"data {data} x fsdp {fsdp} devices asked for, {found} found: "
            "change --loop.data or --loop.fsdp"
        )
    if jax.process_count() > 1 and found != count:
        raise ValueError(
            f"{jax.process_count()} processes have {found} devices: "
            f"--loop.data x --loop.fsdp must be {found}"
        )
    return jax.make_mesh(
        (data, fsdp), AXES, axis_types=(AxisType.Auto,) * 2, devices=jax.devices()[:count]
    )


def replicated(mesh: Mesh) -> NamedSharding:
    """Return the sharding under which every device holds the whole array."""
    return NamedSharding(mesh, PartitionSpec())


def over_batch(mesh: Mesh) -> NamedSharding:
    """Return the sharding that splits axis 0 over all devices."""
    return NamedSharding(mesh, PartitionSpec(AXES))


def fully_sharded(mesh: Mesh, tree):
    """Return shardings of a pytree's leaves (arrays or shapes), split over "fsdp".

    The largest axis that "fsdp" divides is split. The rule depends only on the shape, so that an
    optimizer's moments lie where their parameters do. Leaves of fewer than `SMALL` elements, and
    those without an axis that can be split, are replicated.
    """
    size = mesh.shape["fsdp"]

    def place(leaf):
        axes = [axis for axis, length in enumerate(leaf.shape) if length % size == 0]
        if not axes or math.prod(leaf.shape) < SMALL:
            return replicated(mesh)
        largest = max(axes, key=lambda axis: leaf.shape[axis])
        return NamedSharding(mesh, PartitionSpec(*(None,) * largest, "fsdp"))

    return jax.tree.map(place, tree)


def put(tree, shardings, may_alias: bool | None = None):
    """Put `tree` (leaves that are the same on every process) on the devices.

    Args:
      tree: pytree of arrays. Each process copies only what its own devices hold.
      shardings: a sharding or a pytree of them.
      may_alias: False forces a copy, for arrays that will be donated.
    """
    if jax.process_count() == 1:
        return jax.device_put(tree, shardings, may_alias=may_alias)
    if isinstance(shardings, NamedSharding):
        shardings = jax.tree.map(lambda _: shardings, tree)

    def cut(leaf, sharding):
        leaf = np.asarray(leaf)
        return jax.make_array_from_callback(leaf.shape, sharding, lambda index: leaf[index])

    return jax.tree.map(cut, tree, shardings)


def check_rows(batch, parts: int, mesh: Mesh) -> None:
    """Check that every array of the batch splits into `parts` over all devices of the mesh.

    Raises:
      ValueError: it does not.
    """
    shares = parts * mesh.size
    for leaf in jax.tree.leaves(batch):
        if len(leaf) % shares:
            raise ValueError(
                f"a batch of {len(leaf)} rows does not split into {parts} parts "
                f"for {mesh.size} devices each: change --batch or --loop.parts"
            )


def split_parts(batch, parts: int, mesh: Mesh):
    """Reshape leaves [B, ...] to [parts, B / parts, ...].

    Part i holds rows i, i + parts, …, so that no row changes its device.
    """
    places = NamedSharding(mesh, PartitionSpec(None, AXES))

    def split(leaf):
        leaf = leaf.reshape(len(leaf) // parts, parts, *leaf.shape[1:]).swapaxes(0, 1)
        return jax.lax.with_sharding_constraint(leaf, places)

    return jax.tree.map(split, batch)


def to_host(tree):
    """Return numpy leaves, whole on every process."""
    if jax.process_count() == 1:
        return jax.tree.map(np.asarray, tree)
    from jax.experimental.multihost_utils import process_allgather

    return process_allgather(tree, tiled=True)
