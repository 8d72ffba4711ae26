"""Say where the arrays of a decode lie, if several devices share the target."""

from __future__ import annotations

from typing import Any

import jax
from jax.sharding import PartitionSpec

from jaxspec.core.mesh import MODEL, constrain, current
from jaxspec.core.split_vocabulary import is_split
from jaxspec.core.state import DecodeState, KVCache
from jaxspec.targets.sharding.forward import CACHE


def place_state(state: DecodeState) -> DecodeState:
    """Split the target's cache by kv head, and counts of tokens as logits are; give every device
    all else of a traced state.

    The states before and after a call then lie alike, so that the call can be repeated, and the
    cache stays where it is.
    """
    if current() is None:
        return state
    return jax.tree.map(constrain, state, find_specs(state))


def place_cache(cache: KVCache) -> KVCache:
    """Split a traced cache of the target by kv head."""
    return jax.tree.map(constrain, cache, _find_cache_specs(cache))


def find_specs(state: DecodeState) -> DecodeState:
    """Return where the arrays of a state lie, a `PartitionSpec` for each."""
    specs = jax.tree.map(lambda array: PartitionSpec(), state)
    counts = None if state.counts is None else find_counts_spec(state.counts)
    return specs.replace(cache=_find_cache_specs(state.cache), counts=counts)


def find_counts_spec(counts: jax.Array) -> PartitionSpec:
    """Return where counts [B, V] of tokens lie: with the logits that they change."""
    return PartitionSpec(None, MODEL) if is_split(counts) else PartitionSpec()


def _find_cache_specs(cache: Any) -> Any:
    return jax.tree.map(lambda array: CACHE if array.ndim == 5 else PartitionSpec(), cache)
