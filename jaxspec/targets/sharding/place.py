"""Place a model on the devices of a mesh."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxspec.core.config import TargetConfig
from jaxspec.core.mesh import check_mesh
from jaxspec.core.params import Params
from jaxspec.targets import quant
from jaxspec.targets.sharding.shares import Split, find_split, widen


def shard(params: Params, mesh: Mesh) -> Params:
    """Share the target of a model among the devices of a mesh; every device holds the drafters.

    Args:
      params: of a single device.
      mesh: its only axis is "model".

    Raises:
      ValueError: the devices cannot share the target, or the mesh has other axes.
    """
    mesh, config = check_mesh(mesh), params.spec.target
    if mesh.size == 1:
        return jax.device_put(params, mesh.devices.item())
    spec = dataclasses.replace(params.spec, target=widen(config, mesh.size))
    target = {
        name: _place_collection(name, collection, config, mesh)
        for name, collection in params.target.items()
    }
    return Params(target, replicate(params.drafters, mesh), spec)


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


def _place_collection(name: str, weights: Any, config: TargetConfig, mesh: Mesh) -> dict[str, Any]:
    flat = dict(flatten_dict(weights))
    scale = name == quant.COLLECTION
    if config.tie_embeddings and ("embedding",) in flat:
        table = flat["embedding",]
        flat["lm_head",] = table if scale else table.T
    return unflatten_dict(
        {
            path: _place(array, find_split(path, config, mesh.size, scale), mesh)
            for path, array in flat.items()
        }
    )


def _place(array: Any, split: Split, mesh: Mesh) -> jax.Array:
    """Order an array as the devices hold it, and give each its part."""
    if split.order is not None:
        ordered = jnp.take(array, np.maximum(split.order, 0), axis=-1)
        array = jnp.where(split.order >= 0, ordered, jnp.zeros((), ordered.dtype))
    return jax.device_put(array, NamedSharding(mesh, split.spec(array.ndim)))
