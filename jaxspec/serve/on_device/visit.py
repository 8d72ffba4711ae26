"""A visit to the device: rounds of the slots, and one array of what the host reads."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from jaxspec.core.mesh import constrain
from jaxspec.core.params import Params
from jaxspec.round.commit import has_room
from jaxspec.round.quick_jit import quick_jit
from jaxspec.serve.on_device.drafting import Rounds, absorb_committed, make_slot_rounds
from jaxspec.serve.on_device.joint_plan import Config
from jaxspec.serve.on_device.slot_rounds import Control, Rules, autoregressive_round, drafted_round
from jaxspec.serve.on_device.slot_settings import SlotSettings, read_settings
from jaxspec.serve.on_device.slots import (
    MOST_ROUNDS,
    SlotsState,
    find_axes,
    place_slots,
    put_part,
    take_part,
)

Carry = tuple[SlotsState, jax.Array]  # the slots; int32 [], rounds run so far


class Report(NamedTuple):
    """What a visit did, on the host.

    Attributes:
      done, broken: bool [B].
      tokens: list of the new tokens of each slot.
      emitted, drafts: int [B, rounds], tokens of each round, and how many of them were drafted.
      verified: int [B, rounds], draft tokens that each round verified.
      rows: int [rounds], rows that each round verified.
      rejected: bool [B, rounds], whether the path of each round ended in a rejection, see
        `jaxspec.round.evidence`; None if no evidence is gathered.
    """

    done: np.ndarray
    broken: np.ndarray
    tokens: list[list[int]]
    emitted: np.ndarray
    drafts: np.ndarray
    verified: np.ndarray
    rows: np.ndarray
    rejected: np.ndarray | None = None


@quick_jit(leave_out=True, static_argnames=("config", "rules", "part"), donate_argnames=("state",))
def visit(
    params: Params,
    state: SlotsState,
    settings: jax.Array,
    control: Control,
    first: jax.Array,
    *,
    config: Config,
    rules: Rules,
    part: int,
) -> tuple[SlotsState, jax.Array]:
    """Run up to `control.max_rounds` rounds, at most `MOST_ROUNDS`, while a slot decodes.

    Args:
      settings: int32 [B, columns], see `jaxspec.serve.on_device.slot_settings`.
      config: with the slots' drafter, or a tuple of several drafters' configs; or without one, if
        none reads a slot that decodes. The state need not hold a drafter's arrays then.
      first: int32 [], the first of the slots that decode, a multiple of `part`.
      rules: of rounds over so many slots, see `Rules.of_part`.
      part: P, neighbouring slots whose rounds these are; drafting for a slot costs whether or not
        it decodes. All others stay as they are.

    Returns:
      (the state; a report for `read_report`).
    """
    if part == settings.shape[0]:
        return _run(params, state, settings, control, config, rules)
    axes = find_axes(params, config, state)
    settings = jax.lax.dynamic_slice_in_dim(settings, first, part)
    taken = take_part(state, axes, first, part)
    taken, report = _run(params, taken, settings, control, config, rules)
    return put_part(state, taken, axes), report


def _run(
    params: Params,
    state: SlotsState,
    settings: jax.Array,
    control: Control,
    config: Config,
    rules: Rules,
) -> tuple[SlotsState, jax.Array]:
    """Run rounds of all slots of a state."""
    chosen = read_settings(settings)
    rounds, lengths = make_slot_rounds(params, config, settings), state.decode.cache.length
    slots = _begin(state, chosen.active, chosen.follows)

    def unfinished(carry: Carry) -> jax.Array:
        slots, count = carry
        done = slots.decode.done
        leave = control.want_exit & jnp.any(done & chosen.active)
        return (count < control.max_rounds) & ~jnp.all(done) & ~leave

    def repeat(one, wanted, carry: Carry) -> Carry:
        """Run rounds of one kind while `wanted` holds."""

        def body(carry: Carry) -> Carry:
            return place_slots(one(rounds, carry[0], chosen, control, rules)), carry[1] + 1

        return jax.lax.while_loop(lambda c: unfinished(c) & wanted(c[0]), body, carry)

    def alternate(carry: Carry) -> Carry:
        carry = repeat(autoregressive_round, lambda s: ~control.drafts & has_room(s.decode), carry)
        carry = _absorb_waiting(rounds, carry, chosen, control.drafts)
        return repeat(drafted_round, lambda s: control.drafts, carry)

    begin = (slots, jnp.int32(0))
    if rounds.joint.plan.drafter is None:
        slots, count = repeat(autoregressive_round, lambda s: True, begin)
    else:
        # Use loops, not conditionals: XLA would copy the caches that a conditional carries.
        slots, count = jax.lax.while_loop(unfinished, alternate, begin)
    report = _pack(slots, count)
    return place_slots(_restore(slots, chosen.active, lengths)), report


def _begin(slots: SlotsState, active: jax.Array, follows: jax.Array) -> SlotsState:
    """Begin a visit: count its tokens and rounds from 0, and let only active slots decode."""
    state, done = slots.decode, ~active | slots.broken
    zero = jnp.zeros_like(state.emitted)
    # Attention reads as many rows as the longest sequence has; those of free slots do not count.
    cache = state.cache.replace(length=jnp.where(active, state.cache.length, 0))
    pending = state.pending
    if pending is not None:
        pending = pending.replace(count=jnp.where(active & follows, pending.count, 0))
    state = state.replace(emitted=zero, rounds=zero, done=done, cache=cache, pending=pending)
    return slots.replace(decode=state)


def _restore(slots: SlotsState, active: jax.Array, lengths: jax.Array) -> SlotsState:
    """Give slots that did not decode their lengths back."""
    cache = slots.decode.cache
    cache = cache.replace(length=jnp.where(active, cache.length, lengths))
    return slots.replace(decode=slots.decode.replace(cache=cache))


def _absorb_waiting(
    rounds: Rounds, carry: Carry, settings: SlotSettings, drafts: jax.Array
) -> Carry:
    """Let the drafters absorb what waits, if rounds draft next or the queue is full."""

    def waits(carry: Carry) -> jax.Array:
        state = carry[0].decode
        return jnp.any(state.pending.count > 0) & (drafts | ~has_room(state))

    def absorb(carry: Carry) -> Carry:
        slots, count = carry
        state = absorb_committed(rounds, slots.decode, slots.decode.pending, settings)
        nothing = jnp.zeros_like(state.pending.count)
        state = state.replace(pending=state.pending.replace(count=nothing))
        return slots.replace(decode=state), count

    return jax.lax.while_loop(waits, absorb, carry)


def _pack(slots: SlotsState, count: jax.Array) -> jax.Array:
    """Pack what the host reads into one array int32."""
    state = slots.decode
    head = [state.done, slots.broken, state.emitted, state.rounds]
    head = jnp.stack([column.astype(jnp.int32) for column in head], axis=1)
    by_round = [state.round_emitted, slots.drafts, state.round_drafted]
    if slots.evidence is not None:
        by_round.append(slots.evidence.rings.rejected.astype(jnp.int32))
    by_slot = [head, state.tokens, *(column[:, :MOST_ROUNDS] for column in by_round)]
    flat = jnp.concatenate(by_slot, axis=1).reshape(-1)
    # On every device, so that each of several processes can read it.
    return constrain(jnp.concatenate([count[None], slots.rows, flat]), PartitionSpec())


def read_report(
    report: jax.Array, slots: int, first: int, part: int, gathers: bool = False
) -> Report:
    """Wait for a visit of `part` slots from `first` on, and read its report on all `slots`.

    Args:
      gathers: whether the visit gathered evidence.
    """
    packed = np.asarray(report)
    count, rows = int(packed[0]), packed[1 : MOST_ROUNDS + 2]
    own = packed[MOST_ROUNDS + 2 :].reshape(part, -1)
    by_slot = np.zeros((slots, own.shape[1]), own.dtype)
    by_slot[first : first + part] = own
    done, broken, emitted, rounds = by_slot[:, :4].T
    columns = 4 if gathers else 3
    tokens, by_round = np.split(by_slot[:, 4:], [-columns * MOST_ROUNDS], axis=1)
    ran = np.arange(MOST_ROUNDS) < rounds[:, None]
    each = [np.where(ran, part, 0)[:, :count] for part in np.split(by_round, columns, axis=1)]
    return Report(
        done != 0,
        broken != 0,
        [row[:n].tolist() for row, n in zip(tokens, emitted, strict=True)],
        *each[:3],
        rows[:count],
        each[3] != 0 if gathers else None,
    )
