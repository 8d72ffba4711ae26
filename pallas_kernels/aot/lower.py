"""Lower a program for devices, there or not, that share its arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

if TYPE_CHECKING:
    from pallas_kernels.aot.compile import Program


def lower_on(program: Program, mesh: Mesh | AbstractMesh, platform: str) -> Any:
    """Lower a program for the devices of a mesh, whose axis is "model".

    Args:
      program: its arguments have shardings over such a mesh, or lie on all devices.
      platform: `cuda` or `cpu`.

    Returns:
      A `jax.stages.Lowered`.
    """

    def place(x: Any) -> jax.ShapeDtypeStruct:
        spec = getattr(x.sharding, "spec", PartitionSpec())
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, spec))

    args = jax.tree.map(place, program.args)
    abstract = mesh.abstract_mesh
    with program.around(abstract), jax.sharding.use_abstract_mesh(abstract):
        traced = program.function.trace(*args, **program.static)
        return traced.lower(lowering_platforms=(platform,))
