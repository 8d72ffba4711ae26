"""Share the targets of a check among devices."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from jaxspec.bench.architectures import (
    add_random_drafter,
    architecture,
    dspark_config,
    eagle_config,
    random_params,
)
from jaxspec.core.config import LayerConfig, TargetConfig
from jaxspec.core.params import Params
from jaxspec.targets.sharding.place import shard
from jaxspec.targets.sharding.shares import list_counts, replace_layers

# Most devices that a check is for.
_MOST = 16


def check_devices(devices: int, arch: str) -> None:
    """Refuse a number of devices that cannot share `mini` and an architecture.

    Raises:
      ValueError: they cannot; the message lists the numbers that can.
    """
    configs = [architecture(name).target for name in ("mini", arch)]
    fitting = [
        count
        for count in range(1, min(_MOST, jax.device_count()) + 1)
        if all(count in list_counts(_with_heads(config, count)) for config in configs)
    ]
    if devices not in fitting:
        raise ValueError(
            f"--tp is {devices}: a check shares mini and {arch}, so give one of "
            f"{', '.join(map(str, fitting))}"
        )


class RandomWeights:
    """Random weights of an architecture with its drafters, one copy at a time."""

    def __init__(self, arch: str, dtype: str, mesh: Mesh | None) -> None:
        self._arch, self._dtype, self._mesh = arch, dtype, mesh
        self._held: Params | None = None

    def shared(self) -> Params:
        """Return them with the target shared by the devices of the mesh, if there is one."""
        if self._held is None:
            self._held = share(self._draw(), self._mesh)
        return self._held

    def alone(self) -> Params:
        """Return them on one device. With a mesh they are drawn again, and not kept."""
        if self._mesh is None:
            return self.shared()
        self.drop()  # there may be no room for both
        return self._draw()

    def drop(self) -> None:
        """Keep them no longer."""
        self._held = None

    def _draw(self) -> Params:
        spec = architecture(self._arch)
        params = random_params(spec, jnp.dtype(self._dtype))
        params = add_random_drafter(params, eagle_config(spec))
        return add_random_drafter(params, dspark_config(spec))


def share(params: Params, mesh: Mesh | None) -> Params:
    """Share a target among the devices of a mesh, with heads from `add_heads`; None: leave it."""
    return params if mesh is None else shard(add_heads(params, mesh.size), mesh)


def add_heads(params: Params, devices: int) -> Params:
    """Add query heads of zeros to a target with one kv head, until `devices` divide their number.

    They add zeros to the sum after attention, so it stays the same function. Few numbers divide the
    5 heads of `mini`. A target with more kv heads is returned as it is.

    Args:
      params: of a single device, not quantised.
    """
    config = params.spec.target
    wide = _with_heads(config, devices)
    own, more = (n * config.head_dim for n in (config.num_heads, wide.num_heads - config.num_heads))

    def pad(path: tuple, leaf: jax.Array) -> jax.Array:
        names = [key.key for key in path]
        if "qkv" in names:
            zeros = jnp.zeros((*leaf.shape[:-1], more), leaf.dtype)
            return jnp.concatenate([leaf[..., :own], zeros, leaf[..., own:]], axis=-1)
        if names[-2:] == ["o", "kernel"]:
            return jnp.pad(leaf, ((0, more), (0, 0)))
        return leaf

    target = jax.tree_util.tree_map_with_path(pad, params.target) if more else params.target
    return params.replace(target=target, spec=dataclasses.replace(params.spec, target=wide))


def describe_own(params: Params) -> Params:
    """Describe what one device holds of a model, as shapes, to count what it reads and computes.

    Args:
      params: on one device, or a target that several share.
    """
    devices = 1 if params.layout is None else params.layout.devices
    config = params.spec.target

    def shape(leaf: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.sharding.shard_shape(leaf.shape), leaf.dtype)

    def share(c: LayerConfig) -> dict[str, int]:
        return {name: getattr(c, name) // devices for name in ("num_heads", "num_kv_heads")}

    spec = dataclasses.replace(params.spec, target=replace_layers(config, share))
    return jax.tree.map(shape, params).replace(spec=spec)


def _with_heads(config: TargetConfig, devices: int) -> TargetConfig:
    heads = -(-config.num_heads // devices) * devices
    return (
        dataclasses.replace(config, num_heads=heads)
        if config.num_kv_heads == 1 and not config.layers
        else config
    )
