"""Where a drafter learns: on a device of its own, or on that of the engine, between its visits."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np

from jaxspec.core.params import Params
from jaxspec.targets.layouts.registry import strip


def choose_device(params: Params, device: Any = None) -> Any:
    """Choose the device to learn on; None: the one that decodes.

    Args:
      params: the model.
      device: a `jax.Device`; None: the first one of this process that does not hold the target, if
        there is one of its kind.
    """
    own = params.target["params"]["norm"]["scale"].devices()
    if device is not None:
        return None if device in own else device
    kinds = {one.platform for one in own}
    others = [one for one in jax.local_devices() if one not in own and one.platform in kinds]
    return others[0] if others else None


def place_student(params: Params, drafter: str, device: Any) -> Params:
    """Copy to a device what a drafter needs to learn: itself, and the target's embedding and head.

    The drafter's own weights are stripped of copies for the processor that decodes.
    """
    target = {kind: _without_layers(one) for kind, one in strip(params.target).items()}
    kept = {"target": target, "drafters": {drafter: strip(params.drafter(drafter))}}
    return params.replace(**jax.device_put(kept, device))


def _without_layers(variables: Any) -> Any:
    return {name: one for name, one in variables.items() if not name.startswith("layers_")}


@dataclasses.dataclass(frozen=True)
class Place:
    """Where an array lies, and whether it is bound to it: by both, calls find their programs."""

    sharding: Any
    bound: bool

    def copy(self, array: jax.Array) -> jax.Array:
        """Copy an array of any device to this place."""
        if self.bound:
            return jax.device_put(array, self.sharding, may_alias=False)
        (device,) = self.sharding.device_set
        with jax.default_device(device):  # what is bound to a device stays so, but on the host
            return jax.device_put(np.asarray(array), may_alias=False)


def find_places(weights: Any) -> Any:
    """Find the places of a pytree of arrays."""
    return jax.tree.map(lambda leaf: Place(leaf.sharding, leaf.committed), weights)


def copy_to(places: Any, weights: Any) -> Any:
    """Copy a pytree of arrays to places, and wait for that."""
    copied = jax.tree.map(lambda place, leaf: place.copy(leaf), places, weights)
    return jax.block_until_ready(copied)
