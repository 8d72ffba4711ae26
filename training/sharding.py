"""Where the arrays of a training run live: a mesh of devices, fully sharded parameters, split
batches, several hosts.

The mesh has the axes ("data", "fsdp"). A batch is split over both; parameters and optimizer state
are split over "fsdp" alone (ZeRO, Rajbhandari et al. 2020), and XLA gathers a layer's weights where
they are used and scatters the sums of its gradients.
"""

from __future__ import annotations

import dataclasses
import math

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

AXES = ("data", "fsdp")
SMALL = 1024  # elements; smaller leaves (norms, biases, counters) cost less to keep whole than to gather


@dataclasses.dataclass
class HostOptions:
    """The processes of a run on several hosts; every one runs the same command but for
    `process_id`.

    Attributes:
      coordinator: host:port of process 0, or `auto` where JAX can ask the cluster (SLURM, Cloud
        TPU); None for one process.
      process_id: number of this process, from 0.
      processes: how many there are.
    """

    coordinator: str | None = None
    process_id: int | None = None
    processes: int | None = None


def connect(hosts: HostOptions) -> None:
    """Join the other processes. Must come before anything else that uses JAX; does nothing for a
    run of one process.

    Raises:
      ValueError: some but not all of the options are given, or they contradict each other.
    """
    given = (hosts.coordinator, hosts.process_id, hosts.processes)
    if given == (None, None, None):
        return
    if hosts.coordinator == "auto":
        jax.distributed.initialize()
        return
    if None in given:
        raise ValueError(
            "several processes need coordinator, process_id and processes, all three: see training.sharding"
        )
    if not 0 <= hosts.process_id < hosts.processes:
        raise ValueError(
            f"process_id {hosts.process_id} must be at least 0 and below processes {hosts.processes}"
        )
    jax.distributed.initialize(hosts.coordinator, hosts.processes, hosts.process_id)


def make_mesh(data: int, fsdp: int) -> Mesh:
    """A mesh of `data` x `fsdp` devices; the first ones of a single process, all of them of
    several.

    Raises:
      ValueError: there are too few devices, or devices of another process would be left out.
    """
    found, count = jax.device_count(), data * fsdp
    if data < 1 or fsdp < 1 or found < count:
        raise ValueError(
            f"data {data} x fsdp {fsdp} devices asked for, {found} found: change --loop.data or --loop.fsdp"
        )
    if jax.process_count() > 1 and found != count:
        raise ValueError(
            f"{jax.process_count()} processes have {found} devices: --loop.data x --loop.fsdp must be {found}"
        )
    return jax.make_mesh(
        (data, fsdp), AXES, axis_types=(AxisType.Auto,) * 2, devices=jax.devices()[:count]
    )


def replicated(mesh: Mesh) -> NamedSharding:
    """Every device holds the whole array."""
    return NamedSharding(mesh, PartitionSpec())


def over_batch(mesh: Mesh) -> NamedSharding:
    """Axis 0 is split over all devices."""
    return NamedSharding(mesh, PartitionSpec(AXES))


def fully_sharded(mesh: Mesh, tree):
    """Shardings of a pytree's leaves (arrays or shapes): the largest axis that "fsdp" divides is
    split over it.

    The rule looks at the shape alone, so that an optimizer's moments lie where their parameters do.
    Leaves of fewer than `SMALL` elements, and those that no axis can split, are replicated.
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
    """`tree` (leaves that are the same on every process) as arrays placed by `shardings`, a
    sharding or a pytree of them.

    With several processes each copies only what its own devices hold. `may_alias=False` forces a
    copy, for what is donated.
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
    """Raise a ValueError unless every array of the batch splits into `parts` over all devices of
    the mesh.
    """
    shares = parts * mesh.size
    for leaf in jax.tree.leaves(batch):
        if len(leaf) % shares:
            raise ValueError(
                f"a batch of {len(leaf)} rows does not split into {parts} parts for {mesh.size} devices each"
            )


def split_parts(batch, parts: int, mesh: Mesh):
    """Leaves [B, ...] as [parts, B / parts, ...]; part i holds rows i, i + parts, …, so that no row
    changes its device.
    """
    places = NamedSharding(mesh, PartitionSpec(None, AXES))

    def split(leaf):
        leaf = leaf.reshape(len(leaf) // parts, parts, *leaf.shape[1:]).swapaxes(0, 1)
        return jax.lax.with_sharding_constraint(leaf, places)

    return jax.tree.map(split, batch)


def to_host(tree):
    """Numpy leaves, whole on every process."""
    if jax.process_count() == 1:
        return jax.tree.map(np.asarray, tree)
    from jax.experimental.multihost_utils import process_allgather

    return process_allgather(tree, tiled=True)
