"""What a program to compile is, and its lowering for devices, there or not."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from pallas_kernels import registry
from pallas_kernels.aot.gpus import GPU, format_target_config


class Program(NamedTuple):
    """A program to compile.

    Attributes:
      function: a jitted function.
      args: its arguments, arrays or `jax.ShapeDtypeStruct`.
      static: its keyword arguments.
      facts: JSON values to add to the report.
      devices: number of GPUs. Arguments may have shardings over a mesh of them with the axis
        "model"; others lie on all.
      around: mesh -> context to trace the program in.
    """

    function: Callable
    args: tuple
    static: dict[str, Any] = {}
    facts: dict[str, Any] = {}
    devices: int = 1
    around: Callable[[Any], Any] = lambda mesh: contextlib.nullcontext()


def on_device(target: GPU):
    """Make a context in which the registry chooses kernels for `target`."""
    return registry.for_device(registry.Device("cuda", target.capability, target.cores))


def lower(program: Program, target: GPU):
    """Lower a program for a GPU, in a process whose XLA flags are already set.

    Returns:
      A `jax.stages.Lowered`.
    """
    from jax.experimental import topologies

    topology = topologies.get_topology_desc(
        platform="cuda",
        topology=f"1x1x{program.devices}",
        target_config=format_target_config(target),
    )
    return lower_on(program, Mesh(np.array(topology.devices), ("model",)), "cuda")


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
