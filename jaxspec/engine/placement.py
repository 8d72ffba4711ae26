"""Say where the arrays of a decode lie, if several devices share the target."""

from __future__ import annotations

from jax.sharding import PartitionSpec

from jaxspec.core.mesh import constrain, current
from jaxspec.core.state import DecodeState, KVCache
from jaxspec.targets.sharding.forward import CACHE


def place_state(state: DecodeState) -> DecodeState:
    """Split the target's cache by kv head, and give every device all else of a traced state.

    The states before and after a call then lie alike, so that the call can be repeated, and the
    cache stays where it is.
    """
    if current() is None:
        return state
    rest = constrain(state.replace(cache=None), PartitionSpec())
    return rest.replace(cache=place_cache(state.cache))


def place_cache(cache: KVCache) -> KVCache:
    """Split a traced cache of the target by kv head."""
    return KVCache(
        constrain(cache.k, CACHE),
        constrain(cache.v, CACHE),
        constrain(cache.length, PartitionSpec()),
    )
