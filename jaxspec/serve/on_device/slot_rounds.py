"""A round of the slots: draft, grow, share the rows, verify them packed, commit, absorb."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.core.columns import write_columns
from jaxspec.core.state import DecodeState, Tree
from jaxspec.core.tree import keep_rows, pad_rows, root_only
from jaxspec.drafters.base import Committed
from jaxspec.round.commit import commit, enqueue
from jaxspec.round.context import Round
from jaxspec.serve.on_device.calibration import calibrate, observe_rows
from jaxspec.serve.on_device.drafting import (
    Rounds,
    absorb_committed,
    draft_trees,
    find_entries,
    read_features,
)
from jaxspec.serve.on_device.packed_rows import verify_packed
from jaxspec.serve.on_device.share_rows import Offer, share_rows
from jaxspec.serve.on_device.slot_evidence import record_round
from jaxspec.serve.on_device.slot_settings import SlotSettings
from jaxspec.serve.on_device.slots import SlotsState


class Control(NamedTuple):
    """What the host decides for a visit.

    Attributes:
      max_rounds: int32 [], rounds to run, at most.
      want_exit: bool [], whether to return as soon as a slot finishes.
      drafts: bool [], whether rounds draft.
      forced: int32 [], index of the number of rows to verify in each round; -1: the best.
      seconds: float32 [E], time of a drafted round of each number of rows.
    """

    max_rounds: jax.Array
    want_exit: jax.Array
    drafts: jax.Array
    forced: jax.Array
    seconds: jax.Array


class Rules(NamedTuple):
    """Static choices of the engine.

    Attributes:
      rule: one of `jaxspec.serve.on_device.share_rows.RULES`.
      edges: numbers of rows that verification is compiled for, rising; the last is at least the
        number of slots.
      fewer: numbers of rows below the first edge that only autoregressive rounds are compiled for,
        rising.
    """

    rule: str
    edges: tuple[int, ...]
    fewer: tuple[int, ...] = ()

    def plain_edges(self, slots: int) -> tuple[int, ...]:
        """Return the numbers of rows that autoregressive rounds are compiled for: a row a slot."""
        return (*(edge for edge in (*self.fewer, *self.edges) if edge < slots), slots)

    def of_part(self, part: int, slots: int) -> Rules:
        """Return the rules of rounds over `part` of the `slots`, with their share of the rows."""
        if part == slots:
            return self
        most = max(part, -(-self.edges[-1] * part // slots))
        return self._replace(edges=(*(edge for edge in self.edges if edge < most), most))


def drafted_round(
    rounds: Rounds, slots: SlotsState, settings: SlotSettings, control: Control, rules: Rules
) -> SlotsState:
    """Run a round that drafts, for all slots that decode."""
    noise = _noise(rounds.joint, slots.decode, rounds.joint.plan.longest)
    state, tree = draft_trees(rounds, slots.decode, settings, noise)
    slots, live = slots.replace(decode=state), ~state.done
    offer = Offer(
        calibrate(tree, slots.calibration, find_entries(rounds, tree, settings)),
        jnp.where(live, tree.size, 0),
        settings.weight,
        settings.low,
        settings.high,
    )
    shared = share_rows(rules.rule, offer, rules.edges, control.seconds, control.forced)
    tree = keep_rows(tree, shared.rows).replace(size=shared.rows)
    slots, committed = _verify(rounds, slots, tree, noise, settings, shared.edge, rules.edges)
    committed = _followed(committed, settings)
    return slots.replace(decode=absorb_committed(rounds, slots.decode, committed, settings))


def autoregressive_round(
    rounds: Rounds, slots: SlotsState, settings: SlotSettings, control: Control, rules: Rules
) -> SlotsState:
    """Run a round of roots alone. What the drafters have yet to absorb waits in a queue.

    A config without a drafter keeps nothing for it, though the slots' state may be for one.
    """
    state = slots.decode
    live = (~state.done).astype(jnp.int32)
    tree = root_only(state.root, 1).replace(size=live)
    noise = _noise(rounds.joint, state, 1)
    edges = rules.plain_edges(live.shape[0])
    smallest = (live.sum() > np.asarray(edges)[:-1]).sum(dtype=jnp.int32)
    edge = jnp.where(control.forced < 0, smallest, jnp.minimum(control.forced, len(edges) - 1))
    slots, committed = _verify(rounds, slots, tree, noise, settings, edge, edges)
    # The host may ask for the tree; the state has room for a drafted one.
    accepted, longest = slots.decode.accepted, state.accepted.path.shape[1]
    path = jnp.pad(accepted.path, ((0, 0), (0, longest - accepted.path.shape[1])))
    decode = slots.decode.replace(
        tree=pad_rows(tree, state.tree.token.shape[1]), accepted=accepted.replace(path=path)
    )
    if rounds.joint.plan.drafter is not None:
        decode = enqueue(decode, _followed(committed, settings))
    return slots.replace(decode=decode)


def _followed(committed: Committed, settings: SlotSettings) -> Committed:
    """Keep the tokens of slots that a drafter reads."""
    return committed.replace(count=jnp.where(settings.follows, committed.count, 0))


def _noise(round: Round, state: DecodeState, count: int) -> jax.Array:
    noise = round.noise(state.cache.length + 1, count)
    assert noise is not None, "slots hold requests of any sampling settings"
    return noise


def _verify(
    rounds: Rounds,
    slots: SlotsState,
    tree: Tree,
    noise: jax.Array,
    settings: SlotSettings,
    edge: jax.Array,
    edges: tuple[int, ...],
) -> tuple[SlotsState, Committed]:
    """Verify, commit and record a round; `tree.size` int32 [B] counts the rows of each slot."""
    round, before, hidden = rounds.joint, slots.decode, slots.hidden
    evidence = slots.evidence
    with_hidden = hidden is not None or evidence is not None
    verified, wrong = verify_packed(
        round, before, tree, noise, settings.bias, edge, edges, with_hidden
    )
    # A slot that breaks commits nothing of this round, and ends.
    before = before.replace(done=before.done | wrong)
    live = ~before.done
    if hidden is not None:
        assert verified.hidden is not None, "verification was asked for them"
        hidden = write_columns(hidden, verified.hidden, before.emitted)
    calibration = slots.calibration
    if tree.token.shape[1] > 1:  # roots alone say nothing of the drafter
        entry = find_entries(rounds, tree, settings)
        calibration = observe_rows(tree, verified.accepted, live, calibration, entry)
    state, committed = commit(round, before, tree, verified)
    if evidence is not None:
        features = read_features(rounds, verified.features)
        given = features, committed.count, before.rounds
        evidence = record_round(evidence, tree, verified, *given)
    accepted = jnp.minimum(verified.accepted.count - 1, state.accepted.count)[:, None]
    done_rounds = jnp.max(before.rounds)
    rows = jnp.asarray(edges)[edge][None]
    return slots.replace(
        decode=state,
        drafts=write_columns(slots.drafts, accepted, before.rounds),
        rows=jax.lax.dynamic_update_slice(slots.rows, rows, (done_rounds,)),
        calibration=calibration,
        broken=slots.broken | wrong,
        hidden=hidden,
        evidence=evidence,
    ), committed
