"""The devices that share a target, as programs that are traced for them see them.

Weights lie on the axis "model" of a mesh. `using` says so while a program is traced, and it is part
of the keys of jit's caches: without it, programs are those of a single device.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

MODEL = "model"


@dataclasses.dataclass(frozen=True)
class Layout:
    """Where the arrays of a model lie.

    Attributes:
      mesh: has the axis "model".
      vocab: V. The last axis of arrays [..., V] is split, if the devices divide it.
    """

    mesh: Mesh
    vocab: int

    @property
    def devices(self) -> int:
        """Number of devices that share the target."""
        return self.mesh.shape[MODEL]

    def splits(self, size: int) -> bool:
        """Whether an axis of this size is the vocabulary, and is split."""
        return size == self.vocab and size % self.devices == 0


_layout = jax.make_user_context(None)


def using(layout: Layout | None) -> Any:
    """Make a context in which programs are traced for a layout; None: for a single device."""
    return _layout(layout)


def current() -> Layout | None:
    """Return the layout that programs are traced for now; None for a single device."""
    return _layout.value


def find_layout(array: Any, vocab: int) -> Layout | None:
    """Return the layout of a model, of which `array` is a weight; None if one device holds it."""
    mesh = getattr(getattr(array, "sharding", None), "mesh", None)
    if not isinstance(mesh, Mesh) or mesh.shape.get(MODEL, 1) == 1:
        return None
    return Layout(mesh, vocab)


def check_mesh(mesh: Mesh) -> Mesh:
    """Return the mesh with axes that XLA partitions programs over.

    `jax.make_mesh` makes axes of another type by default in some versions.

    Raises:
      ValueError: its axes are others than "model".
    """
    if mesh.axis_names != (MODEL,):
        raise ValueError(
            f"the mesh has the axes {mesh.axis_names}: make it with "
            f'jax.make_mesh(({mesh.size},), ("{MODEL}",))'
        )
    return Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,))


def constrain(tree: Any, spec: PartitionSpec) -> Any:
    """Place the arrays of a traced pytree; without a layout, return it as it is."""
    layout = current()
    if layout is None:
        return tree
    return jax.lax.with_sharding_constraint(tree, NamedSharding(layout.mesh, spec))
