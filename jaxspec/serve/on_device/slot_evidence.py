"""Evidence of the slots' rounds, for those who train a drafter while the engine serves.

The rows are those of `jaxspec.round.evidence`: what one drafter, which learns, reads of the target,
and the target's hidden states. Requests that this drafter does not read write rows that nobody
takes.

B slots.
"""

from __future__ import annotations

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from jaxspec.core.columns import write_columns
from jaxspec.core.params import Spec
from jaxspec.core.state import Tree
from jaxspec.round.context import Verified
from jaxspec.round.evidence import Evidence, append_rows, find_rejections, make_evidence
from jaxspec.round.plan import DecodeConfig, make_plan
from jaxspec.serve.on_device.joint_plan import Config, join_plans, list_configs


class SlotEvidence(flax.struct.PyTreeNode):
    """Rings of B slots.

    Attributes:
      rings: of the newest rows; `rejected` is of one visit.
      following: int32 [B], absolute position of the row that each slot writes next. A slot that
        does not decode writes there too, which its next chunk or round overwrites.
    """

    rings: Evidence
    following: jax.Array


def find_gathered(config: Config) -> DecodeConfig | None:
    """Find the config of the drafter that learns; None if none does."""
    return next((one for one in list_configs(config) if one.evidence), None)


def init_slot_evidence(
    spec: Spec, config: Config, slots: int, rounds: int, dtype: Any
) -> SlotEvidence | None:
    """Make empty rings; None if no drafter learns.

    Args:
      rounds: of a visit, at most.
    """
    gathered = find_gathered(config)
    if gathered is None:
        return None
    drafter = make_plan(spec, gathered).drafter
    layers = () if drafter is None else drafter.feature_layers
    longest = join_plans(spec, config).longest
    rings = make_evidence(spec.target, len(layers), gathered.evidence, longest, slots, dtype)
    rings = rings.replace(rejected=jnp.zeros((slots, rounds), bool))
    return SlotEvidence(rings, jnp.zeros(slots, jnp.int32))


def record_round(
    evidence: SlotEvidence,
    tree: Tree,
    verified: Verified,
    features: jax.Array,
    emit: jax.Array,
    rounds: jax.Array,
) -> SlotEvidence:
    """Write a round's rows.

    Args:
      tree, verified: of the round, with hidden states.
      features: [B, A, F], what the drafter that learns reads of `verified.features`.
      emit: int32 [B], tokens that each slot emitted.
      rounds: int32 [B], rounds of the visit before this one.
    """
    assert verified.hidden is not None, "verification keeps them where evidence is gathered"
    rings = append_rows(evidence.rings, features, verified.hidden, evidence.following)
    ended = find_rejections(tree, verified.accepted, emit)
    rejected = write_columns(rings.rejected, ended[:, None], rounds)
    return SlotEvidence(rings.replace(rejected=rejected), evidence.following + emit)


def take_rings(evidence: SlotEvidence, slot: jax.Array) -> Evidence:
    """Take the rings of a slot int32 [], with a batch axis of 1."""
    return jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, slot, 1, axis=0), evidence.rings)


def put_rings(
    evidence: SlotEvidence, rings: Evidence, slot: jax.Array, end: jax.Array
) -> SlotEvidence:
    """Write the rings of a slot back, whose sequence has `end` int32 [] rows."""
    written = jax.tree.map(
        lambda x, new: jax.lax.dynamic_update_slice_in_dim(x, new, slot, axis=0),
        evidence.rings,
        rings,
    )
    return SlotEvidence(written, evidence.following.at[slot].set(end))


copy_rings = jax.jit(take_rings)
