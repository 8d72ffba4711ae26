"""Copy what a slot's caches hold into another slot."""

from __future__ import annotations

import functools

import jax

from jaxspec.core.params import Params
from jaxspec.serve.drafters import Config, join_plans
from jaxspec.serve.on_device.slots import (
    SlotsState,
    place_slots,
    put_slot,
    shapes_of_drafts,
    take_slot,
)


@functools.partial(jax.jit, static_argnames=("config",), donate_argnames=("state",))
def copy_slot(params: Params, state: SlotsState, slots: jax.Array, *, config: Config) -> SlotsState:
    """Copy the rows of the target's cache and the drafters' states.

    `jaxspec.serve.on_device.feed.feed` then sets the lengths.

    Args:
      slots: int32 [2], from which slot to which.
    """
    decode, (source, target) = state.decode, slots
    cache, drafter = decode.cache, join_plans(params.spec, config).drafter

    def copy(rows: jax.Array) -> jax.Array:
        one = jax.lax.dynamic_slice_in_dim(rows, source, 1, 1)
        return jax.lax.dynamic_update_slice_in_dim(rows, one, target, 1)

    decode = decode.replace(cache=cache.replace(k=copy(cache.k), v=copy(cache.v)))
    if drafter is not None:
        shapes = shapes_of_drafts(params, config, cache.k.shape[3])
        one = take_slot(decode.draft, shapes, source)
        decode = decode.replace(draft=put_slot(decode.draft, one, shapes, target))
    return place_slots(state.replace(decode=decode))
