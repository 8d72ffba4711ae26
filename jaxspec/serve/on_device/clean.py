"""Clean a slot after a request whose values were not finite."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from jaxspec.core.params import Params
from jaxspec.serve.drafters import Config, init_drafts, join_plans
from jaxspec.serve.on_device.slots import SlotsState, place_slots, put_slot, shapes_of_drafts


@functools.partial(jax.jit, static_argnames=("config",), donate_argnames=("state",))
def clean_slot(params: Params, state: SlotsState, slot: jax.Array, *, config: Config) -> SlotsState:
    """Fill the caches of a slot with zeros, as those of a new engine are.

    Masks alone don't do: masked rows are multiplied by a weight of zero, which keeps a NaN.

    Args:
      slot: int32 [].
    """
    decode, drafter = state.decode, join_plans(params.spec, config).drafter
    cache = decode.cache

    def clean(rows: jax.Array) -> jax.Array:
        zeros = jnp.zeros((rows.shape[0], 1, *rows.shape[2:]), rows.dtype)
        return jax.lax.dynamic_update_slice_in_dim(rows, zeros, slot, 1)

    decode = decode.replace(cache=cache.replace(k=clean(cache.k), v=clean(cache.v)))
    if drafter is not None:
        capacity = cache.k.shape[3]
        shapes = shapes_of_drafts(params, config, capacity)
        new = init_drafts(params.spec, config, 1, capacity, params.dtype)
        pending = decode.pending
        decode = decode.replace(
            draft=put_slot(decode.draft, new, shapes, slot),
            pending=pending.replace(
                count=pending.count.at[slot].set(0), features=pending.features.at[slot].set(0)
            ),
        )
    broken = state.broken.at[slot].set(False)
    return place_slots(state.replace(decode=decode, broken=broken))
