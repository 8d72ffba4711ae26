"""Programs that change one slot: copy what it holds to another, count its tokens, clean it."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from jaxspec.core.mesh import constrain
from jaxspec.core.params import Params
from jaxspec.core.sampling.penalties import count_prompt
from jaxspec.serve.on_device.joint_plan import Config, init_drafts, join_plans
from jaxspec.serve.on_device.slots import (
    SlotsState,
    place_slots,
    put_slot,
    shapes_of_drafts,
    take_slot,
)
from jaxspec.targets.sharding.state import find_counts_spec


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

    k, v = jax.tree.map(copy, (cache.k, cache.v))
    decode = decode.replace(cache=cache.replace(k=k, v=v))
    if drafter is not None:
        shapes = shapes_of_drafts(params, config, cache.capacity)
        one = take_slot(decode.draft, shapes, source)
        decode = decode.replace(draft=put_slot(decode.draft, one, shapes, target))
    return place_slots(state.replace(decode=decode))


@functools.partial(jax.jit, donate_argnames=("counts",))
def count_slot(counts: jax.Array, tokens: jax.Array, where: jax.Array) -> jax.Array:
    """Begin to count the tokens of a slot, see `DecodeState.counts`.

    Args:
      counts: int32 [B, V].
      tokens: int32 [1, S], the prompt, padded.
      where: int32 [2], the slot and the prompt's length.
    """
    one = count_prompt(tokens, where[1:], counts.shape[1])
    counted = jax.lax.dynamic_update_slice_in_dim(counts, one, where[0], 0)
    return constrain(counted, find_counts_spec(counted))


@functools.partial(jax.jit, static_argnames=("config",), donate_argnames=("state",))
def clean_slot(params: Params, state: SlotsState, slot: jax.Array, *, config: Config) -> SlotsState:
    """Fill the caches of a slot with zeros, after a request whose values were not finite.

    Masks alone don't do: masked rows are multiplied by a weight of zero, which keeps a NaN.

    Args:
      slot: int32 [].
    """
    decode, drafter = state.decode, join_plans(params.spec, config).drafter
    cache = decode.cache

    def clean(rows: jax.Array) -> jax.Array:
        zeros = jnp.zeros((rows.shape[0], 1, *rows.shape[2:]), rows.dtype)
        return jax.lax.dynamic_update_slice_in_dim(rows, zeros, slot, 1)

    k, v = jax.tree.map(clean, (cache.k, cache.v))
    decode = decode.replace(cache=cache.replace(k=k, v=v))
    if drafter is not None:
        capacity = cache.capacity
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
