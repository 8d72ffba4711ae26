"""Place a model on the devices of a mesh."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxspec.core.config import TargetConfig
from jaxspec.core.mesh import check_mesh
from jaxspec.core.params import Params
from jaxspec.targets.layouts.quant import FOUR_BITS
from jaxspec.targets.layouts.registry import is_per_output
from jaxspec.targets.sharding.shares import Split, choose_experts, find_split, widen


def shard(params: Params, mesh: Mesh, experts: str = "channel") -> Params:
    """Share the target of a model among the devices of a mesh; every device holds the drafters.

    Args:
      params: of a single device.
      mesh: its only axis is "model".
      experts: how they share experts, see `jaxspec.load`.

    Raises:
      ValueError: the devices cannot share the target, as none of four bits, or the mesh has other
        axes.
    """
    mesh = check_mesh(mesh)
    if mesh.size > 1 and FOUR_BITS in params.target:
        raise ValueError(
            "devices cannot share weights of four bits: load the model with quantize='int8'"
        )
    there = jax.device_count()
    config = choose_experts(params.spec.target, mesh.size, experts, there)
    if mesh.size == 1:
        return jax.device_put(params, mesh.devices.item())
    spec = dataclasses.replace(params.spec, target=widen(config, mesh.size, there))

    def place(array: Any, split: Split) -> jax.Array:
        ordered = order(array, split)
        return jax.device_put(ordered, NamedSharding(mesh, split.spec(ordered.ndim)))

    target = map_leaves(place, params.target, config, mesh.size)
    return Params(target, replicate(params.drafters, mesh), spec)


def map_leaves(
    function: Callable[[jax.Array, Split], Any], target: Any, config: TargetConfig, devices: int
) -> dict[str, Any]:
    """Apply a function to every array of a widened target and to how devices share it.

    Args:
      target: variables of the target as `config` describes it, quantised or not.
      devices: number of them.
    """
    found = {}
    for name, weights in target.items():
        flat, scale = dict(flatten_dict(weights)), is_per_output(name)
        if config.tie_embeddings and ("embedding",) in flat:
            table = flat["embedding",]
            flat["lm_head",] = table if scale else table.T
        placed = {
            path: function(array, find_split(path, config, devices, scale))
            for path, array in flat.items()
        }
        found[name] = unflatten_dict(placed)
    return found


def order(array: Any, split: Split) -> jax.Array:
    """Order an array as the devices hold it."""
    if split.order is None:
        return array
    ordered = jnp.take(array, np.maximum(split.order, 0), axis=-1)
    return jnp.where(split.order >= 0, ordered, jnp.zeros((), ordered.dtype))


def replicate(tree: Any, mesh: Mesh) -> Any:
    """Give every device the whole arrays of a pytree; each process gives its own devices theirs."""
    everywhere = NamedSharding(mesh, PartitionSpec())

    def copy(array: jax.Array) -> jax.Array:
        if len(array.devices()) > 1:  # it lies on the mesh already
            return jax.device_put(array, everywhere)
        copies = [jax.device_put(array, device) for device in mesh.local_devices]
        return jax.make_array_from_single_device_arrays(array.shape, everywhere, copies)

    return jax.tree.map(copy, tree)


def refuse(params: Params, what: str) -> None:
    """Refuse a model that several devices share.

    Args:
      params: the model.
      what: end of the message: what cannot be done with it.

    Raises:
      ValueError: several devices share the target.
    """
    if params.layout is not None:
        raise ValueError(
            f"a target shared by {params.layout.devices} devices cannot be {what}: "
            "load it without mesh"
        )
