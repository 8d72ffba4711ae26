"""The state of the slots on the device. Every program donates it."""

from __future__ import annotations

import functools
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from jaxspec.call.prefill import begin_state
from jaxspec.core.cache import PartCache, allocate
from jaxspec.core.mesh import constrain
from jaxspec.core.params import Params, Spec
from jaxspec.core.sampling.settings import MIXED
from jaxspec.core.state import DecodeState, KVCache
from jaxspec.round.commit import make_pending
from jaxspec.round.context import Round
from jaxspec.round.plan import QUEUE, DecodeConfig
from jaxspec.serve.on_device.calibration import Calibration, init_calibration
from jaxspec.serve.on_device.joint_plan import Config, init_drafts, join_plans, list_configs
from jaxspec.serve.on_device.slot_evidence import SlotEvidence, init_slot_evidence
from jaxspec.serve.on_device.slot_settings import make_settings, read_settings
from jaxspec.targets.sharding.state import place_state

MOST_ROUNDS = 16
"""Rounds of a visit, at most."""


class SlotsState(flax.struct.PyTreeNode):
    """B slots.

    Attributes:
      decode: the state of decoding. Its tokens, counts and rounds are those of one visit.
      drafts: int32 [B, MOST_ROUNDS + 1], accepted draft tokens of each round of the visit.
      rows: int32 [MOST_ROUNDS + 1], rows that each round verified, padding included.
      calibration: what was seen of the drafter's probabilities.
      broken: bool [B], slots for whose sequence the target computed a value that is not finite.
        They do not decode until `jaxspec.serve.on_device.change_slot.clean_slot`.
      hidden: [B, M, E], the target's hidden states that the tokens were drawn from; None if no
        request may ask for log-probabilities.
      evidence: of the rounds; None if no drafter learns.
    """

    decode: DecodeState
    drafts: jax.Array
    rows: jax.Array
    calibration: Calibration
    broken: jax.Array
    hidden: jax.Array | None = None
    evidence: SlotEvidence | None = None


def make_slots(
    params: Params, config: Config, slots: int, capacity: int, keep_hidden: bool = False
) -> SlotsState:
    """Make the state of free slots.

    Args:
      config: with sampling `MIXED`.
      slots: B.
      capacity: rows S of the caches.
      keep_hidden: keep the hidden states that a visit's tokens were drawn from.
    """
    make = functools.partial(_make_slots, params.spec, params.dtype)
    made = functools.partial(make, config, slots, capacity, keep_hidden)
    # One program, not one for each array; each of several devices makes its part of the caches.
    return jax.jit(lambda: place_slots(made()))()


def _make_slots(
    spec: Spec, dtype: Any, config: Config, slots: int, capacity: int, keep_hidden: bool
) -> SlotsState:
    plan = join_plans(spec, config)
    drafter = plan.drafter
    decode = begin_state(
        plan,
        jnp.zeros(slots, jnp.int32),
        allocate(spec.target, slots, capacity, dtype),
        init_drafts(spec, config, slots, capacity, dtype),
        max_tokens=MOST_ROUNDS * plan.longest,
    )
    if drafter:
        width = len(drafter.feature_layers) * spec.target.hidden_size
        features = jnp.zeros((slots, width), dtype)
        decode = decode.replace(pending=make_pending(features, max(plan.longest, QUEUE)))
    zeros = jnp.zeros((slots, MOST_ROUNDS + 1), jnp.int32)
    calibration = init_calibration(slots, len(list_configs(config)) * plan.longest)
    hidden = None
    if keep_hidden:
        hidden = jnp.zeros((*decode.tokens.shape, spec.target.hidden_size), dtype)
    broken = jnp.zeros(slots, bool)
    decode = decode.replace(counts=jnp.zeros((slots, spec.target.vocab_size), jnp.int32))
    evidence = init_slot_evidence(spec, config, slots, MOST_ROUNDS + 1, dtype)
    state = SlotsState(decode, zeros, zeros[0] + 0, calibration, broken, hidden, evidence)
    # Leaves that share a buffer could not be donated. Programs return dtypes that are not weak, so
    # the first call of one would compile it for others than the next.
    return jax.tree.map(lambda x: jnp.array(x, x.dtype, copy=True), state)


def place_slots(state: SlotsState) -> SlotsState:
    """Split the target's cache of a traced state among devices, see `placement.place_state`."""
    rest = constrain(state.replace(decode=None), PartitionSpec())
    return rest.replace(decode=place_state(state.decode))


@functools.partial(jax.jit, donate_argnames=("state",))
def set_lengths(state: SlotsState, lengths: jax.Array) -> SlotsState:
    """Give the slots' sequences other lengths int32 [B]."""
    decode = state.decode
    decode = decode.replace(cache=decode.cache.replace(length=lengths))
    return place_slots(state.replace(decode=decode))


def make_slot_round(params: Params, config: DecodeConfig, settings: jax.Array | None) -> Round:
    """Make the round of a program over slots; without settings, one that neither draws nor stops."""
    from jaxspec.round.context import make_round

    assert config.sampling == MIXED, "slots hold requests of any sampling settings"
    given = jnp.asarray(make_settings(1)) if settings is None else settings
    return make_round(params, read_settings(given).request, config)


def find_axes(params: Params, config: Config, state: SlotsState) -> Any:
    """Find the axis of slots of every array of a state: a tree of ints, -1 where there is none.

    Args:
      state: of the slots; only its shapes are read.
    """
    capacity, keep_hidden = state.decode.cache.capacity, state.hidden is not None
    one, two = (
        jax.eval_shape(
            lambda count=count: _make_slots(
                params.spec, params.dtype, config, count, capacity, keep_hidden
            )
        )
        for count in (1, 2)
    )
    return jax.tree.map(_axis, one, two)


def take_part(state: SlotsState, axes: Any, first: jax.Array, size: int) -> SlotsState:
    """Take `size` neighbouring slots of a state, from slot `first` int32 [] on, a multiple of it.

    The target's cache stays whole, see `jaxspec.core.cache.PartCache`; all else is copied.
    """

    def take(array: jax.Array, axis: int) -> jax.Array:
        return array if axis < 0 else jax.lax.dynamic_slice_in_dim(array, first, size, axis)

    cache = state.decode.cache
    part = jax.tree.map(take, _without_cache(state), _without_cache(axes))
    length = jax.lax.dynamic_slice_in_dim(cache.length, first, size)
    return part.replace(
        decode=part.decode.replace(cache=PartCache(cache.k, cache.v, length, first))
    )


def put_part(state: SlotsState, part: SlotsState, axes: Any) -> SlotsState:
    """Write what `take_part` took back; arrays without slots are the part's."""
    cache = part.decode.cache

    def put(array: jax.Array, new: jax.Array, axis: int) -> jax.Array:
        if axis < 0:
            return new
        return jax.lax.dynamic_update_slice_in_dim(array, new, cache.sequence, axis)

    bare = (_without_cache(one) for one in (state, part, axes))
    whole, length = jax.tree.map(put, *bare), put(state.decode.cache.length, cache.length, 0)
    return whole.replace(decode=whole.decode.replace(cache=KVCache(cache.k, cache.v, length)))


def _without_cache(state: SlotsState) -> SlotsState:
    return state.replace(decode=state.decode.replace(cache=None))


def shapes_of_drafts(params: Params, config: Config, capacity: int) -> tuple[Any, Any]:
    """Return the shapes of the drafters' state for one and for two sequences, see `take_slot`."""
    one, two = (
        jax.eval_shape(
            lambda count=count: init_drafts(params.spec, config, count, capacity, params.dtype)
        )
        for count in (1, 2)
    )
    return one, two


def take_slot(draft: Any, shapes: tuple[Any, Any], slot: jax.Array) -> Any:
    """Take the drafter's state of one slot, with a batch axis of 1.

    Args:
      shapes: from `shapes_of_drafts`; they tell where the batch axis is.
    """
    return jax.tree.map(
        lambda x, one, two: jax.lax.dynamic_slice_in_dim(x, slot, 1, _axis(one, two)),
        draft,
        *shapes,
    )


def put_slot(draft: Any, one_slot: Any, shapes: tuple[Any, Any], slot: jax.Array) -> Any:
    """Write the drafter's state of one slot back; see `take_slot`."""
    return jax.tree.map(
        lambda x, new, one, two: jax.lax.dynamic_update_slice_in_dim(x, new, slot, _axis(one, two)),
        draft,
        one_slot,
        *shapes,
    )


def _axis(one: jax.ShapeDtypeStruct, two: jax.ShapeDtypeStruct) -> int:
    """Find the axis in which shapes for one and for two sequences differ; -1: they do not."""
    axes = np.flatnonzero(np.asarray(one.shape) != np.asarray(two.shape))
    return int(axes[0]) if len(axes) else -1
