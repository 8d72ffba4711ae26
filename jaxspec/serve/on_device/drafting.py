"""What the drafters do in a round: draft trees for their own slots, and read what was committed.

An engine of one drafter does what `jaxspec.decode` does. Of several drafters, each slot has at most
one, and only drafters that some slot needs run. They run one after the other: the target verifies
the trees of all slots together.

B slots, N rows of the largest tree.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxspec.core.params import Params
from jaxspec.core.state import DecodeState, Tree
from jaxspec.core.tree import pad_rows, root_only
from jaxspec.drafters.base import Committed
from jaxspec.round.commit import absorb, remember
from jaxspec.round.context import Round
from jaxspec.round.draft import draft
from jaxspec.round.grow import grow
from jaxspec.serve.on_device.joint_plan import Config, join_plans, list_configs
from jaxspec.serve.on_device.slot_settings import SlotSettings
from jaxspec.serve.on_device.slots import make_slot_round


class Rounds(NamedTuple):
    """What the phases of a round read.

    Attributes:
      joint: of what is done for all slots alike, see
        `jaxspec.serve.on_device.joint_plan.join_plans`.
      each: of each drafter; of one drafter, or of none, `joint` alone.
    """

    joint: Round
    each: tuple[Round, ...]


def make_slot_rounds(params: Params, config: Config, settings: jax.Array) -> Rounds:
    """Make the rounds of a visit, see `make_slot_round`."""
    each = tuple(make_slot_round(params, one, settings) for one in list_configs(config))
    if len(each) == 1:
        return Rounds(each[0], each)
    return Rounds(dataclasses.replace(each[0], plan=join_plans(params.spec, config)), each)


def draft_trees(
    rounds: Rounds, state: DecodeState, settings: SlotSettings, noise: jax.Array
) -> tuple[DecodeState, Tree]:
    """Let every drafter draft for its slots.

    Args:
      noise: float32 [B, A, V], noise of the tokens after the root.

    Returns:
      (the state, with what the drafters remember; the trees of N rows, roots alone of slots that no
      drafter reads).
    """
    if len(rounds.each) == 1:
        drafted = draft(rounds.joint, state, noise)
        tree = grow(rounds.joint, state, drafted)
        return remember(rounds.joint, state, drafted.scratch), tree
    rows, drafts = rounds.joint.plan.widths[-1], list(state.draft)
    tree = root_only(state.root, rows)
    for index, round in enumerate(rounds.each):
        own = _find_own(settings, index) & (settings.request.deepest > 0) & ~state.done
        before = state.replace(draft=drafts[index], done=~own)
        drafts[index], found = _draft_own(round, before, noise[:, : round.plan.longest])
        tree = jax.tree.map(lambda new, old, own=own: _choose(own, new, old), found, tree)
    return state.replace(draft=tuple(drafts)), tree


def absorb_committed(
    rounds: Rounds, state: DecodeState, committed: Committed, settings: SlotSettings
) -> DecodeState:
    """Let every drafter read what was committed in its slots.

    Args:
      committed: with the features of `rounds.joint`, and a count of 0 for slots that no drafter
        reads.
    """
    if len(rounds.each) == 1:
        return absorb(rounds.joint, state, committed)
    drafts = list(state.draft)
    for index, round in enumerate(rounds.each):
        count = jnp.where(_find_own(settings, index), committed.count, 0)
        features = _take_features(rounds.joint, round, committed.features)
        own = committed.replace(features=features, count=count)
        drafts[index] = _absorb_own(round, state.replace(draft=drafts[index]), own)
    return state.replace(draft=tuple(drafts))


def find_entries(rounds: Rounds, tree: Tree, settings: SlotSettings) -> jax.Array | None:
    """Find the entries of rows in the tables of `jaxspec.serve.on_device.calibration`, int32 [B, N].

    Drafters differ in how sure they are of themselves, so each has a table. None for one drafter:
    entries are depths.
    """
    if len(rounds.each) == 1:
        return None
    table = jnp.maximum(settings.reader - 1, 0)[:, None]
    return table * rounds.joint.plan.longest + tree.depth


def read_features(rounds: Rounds, features: jax.Array) -> jax.Array:
    """Return what the drafter that learns reads of the features of `rounds.joint` [..., F]."""
    learns = next(round for round in rounds.each if round.config.evidence)
    return features if len(rounds.each) == 1 else _take_features(rounds.joint, learns, features)


def _find_own(settings: SlotSettings, index: int) -> jax.Array:
    """Find the slots that a drafter reads, bool [B]."""
    return settings.reader == index + 1


def _draft_own(round: Round, state: DecodeState, noise: jax.Array) -> tuple[Any, Tree]:
    """Draft for the slots that are not done, if there are any.

    Args:
      state: with the state of this drafter.

    Returns:
      (the drafter's state; trees of N rows, which are garbage for all other slots).
    """

    def run() -> tuple[Tree, Any]:
        drafted = draft(round, state, noise)
        kept = None if round.drafter.remember is None else drafted.scratch
        return pad_rows(grow(round, state, drafted), state.tree.token.shape[1]), kept

    def skip() -> tuple[Tree, Any]:
        return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(run))

    used = ~state.done.all()
    # The drafter's caches are read here and not returned, so that no branch copies them.
    tree, scratch = jax.lax.cond(used, run, skip)
    after = remember(round, state, scratch).draft
    # For the same reason, what it leaves as it was is not selected.
    kept = jax.tree.map(
        lambda new, old: old if new is old else jnp.where(used, new, old), after, state.draft
    )
    return kept, tree


def _absorb_own(round: Round, state: DecodeState, committed: Committed) -> Any:
    """Return the drafter's state after it has read what was committed, if that is anything."""

    def read(carry: tuple[Any, jax.Array]) -> tuple[Any, jax.Array]:
        return absorb(round, state.replace(draft=carry[0]), committed).draft, jnp.bool_(False)

    # A loop of at most one turn, not a conditional: XLA would copy the caches that one carries.
    some = jnp.any(committed.count > 0)
    return jax.lax.while_loop(lambda carry: carry[1], read, (state.draft, some))[0]


def _take_features(joint: Round, round: Round, features: jax.Array) -> jax.Array:
    """Take the features of a drafter's layers [..., F] from those of all layers that are read."""
    size = round.params.spec.target.hidden_size
    places = [joint.feature_layers.index(layer) for layer in round.feature_layers]
    taken = [features[..., place * size : (place + 1) * size] for place in places]
    return jnp.concatenate([features[..., :0], *taken], axis=-1)


def _choose(own: jax.Array, new: jax.Array, old: jax.Array) -> jax.Array:
    """Take `new` where `own` bool [B] holds, else `old`."""
    return jnp.where(own.reshape(-1, *(1,) * (new.ndim - 1)), new, old)
