"""Correct the drafter's path probabilities by what was accepted, depth by depth and slot by slot.

A drafter that is too sure of itself would take rows from others. Each depth keeps the number of
rows that were accepted and the number that the scores promised, of all rows verified lately; their
ratio corrects the scores. How sure a drafter is of itself is its own nature, so each of several
drafters has such figures of its own. Some texts are easier to draft for than the drafter thinks,
and some harder: so each slot keeps the same two figures of its request, for all depths together.
"""

from __future__ import annotations

import flax.struct
import jax
import jax.numpy as jnp

from jaxspec.core.state import Accepted, Tree

# Rows of a depth, and of a slot, that are taken to have been seen as promised; and the share of
# what was seen that a round keeps. The last hundred rounds count, and the last ten of a slot.
_PRIOR, _KEPT = 8.0, 0.99
_SLOT_PRIOR, _SLOT_KEPT = 4.0, 0.9


class Calibration(flax.struct.PyTreeNode):
    """What was seen of the drafter's probabilities, decayed.

    Attributes:
      hits, expected: float32 [A], accepted rows of each depth, and the sum of their raw
        probabilities; of several drafters, their tables one after the other.
      slot_hits, slot_expected: float32 [B], accepted rows of each slot's request, and the sum of
        their probabilities after the correction by depth.
    """

    hits: jax.Array
    expected: jax.Array
    slot_hits: jax.Array
    slot_expected: jax.Array

    def forget(self, new: jax.Array) -> Calibration:
        """Forget what was seen of slots bool [B], whose requests are new."""
        hits, expected = (jnp.where(new, 0.0, x) for x in (self.slot_hits, self.slot_expected))
        return self.replace(slot_hits=hits, slot_expected=expected)


def init_calibration(slots: int, depths: int) -> Calibration:
    """Begin with nothing seen of B slots and A depths."""
    # Buffers of their own: equal ones could not be donated.
    return Calibration(*(jnp.zeros(size) for size in (depths, depths, slots, slots)))


def calibrate(tree: Tree, known: Calibration, entry: jax.Array | None = None) -> jax.Array:
    """Return the probability that each row is accepted, float32 [B, N], non-increasing.

    Args:
      tree: rows sorted by log-probability.
      entry: int32 [B, N], entries of the rows in the tables; None: their depths.
    """
    ratio = (known.slot_hits + _SLOT_PRIOR) / (known.slot_expected + _SLOT_PRIOR)
    score = jnp.minimum(_correct_by_depth(tree, known, entry) * ratio[:, None], 1.0)
    # A correction that varies with depth may change the order. A row is worth no more than those
    # that must be taken before it.
    return jax.lax.cummin(score.at[:, 0].set(1.0), axis=1)


def observe_rows(
    tree: Tree,
    accepted: Accepted,
    live: jax.Array,
    known: Calibration,
    entry: jax.Array | None = None,
) -> Calibration:
    """Count the verified rows of live slots bool [B].

    Args:
      tree: as verified.
      accepted: its path before a stop or a limit cuts it.
      entry: see `calibrate`.
    """
    rows, depths = jnp.arange(tree.token.shape[1]), jnp.arange(known.hits.shape[0])
    verified = (rows > 0) & (rows < tree.size[:, None]) & live[:, None]
    right = verified & (accepted.path[:, :, None] == rows).any(1)
    at = verified[..., None] & ((tree.depth if entry is None else entry)[..., None] == depths)
    found = (at & right[..., None]).sum((0, 1)).astype(jnp.float32)
    promised = jnp.where(at, _probability(tree)[..., None], 0.0).sum((0, 1))
    own = jnp.where(verified, _correct_by_depth(tree, known, entry), 0.0).sum(1)
    kept = jnp.where(live, _SLOT_KEPT, 1.0)
    return Calibration(
        _KEPT * known.hits + found,
        _KEPT * known.expected + promised,
        kept * known.slot_hits + right.sum(1),
        kept * known.slot_expected + own,
    )


def _correct_by_depth(tree: Tree, known: Calibration, entry: jax.Array | None) -> jax.Array:
    """Return path probabilities, corrected by depth, float32 [B, N]."""
    ratio = (known.hits + _PRIOR) / (known.expected + _PRIOR)
    return jnp.minimum(_probability(tree) * ratio[tree.depth if entry is None else entry], 1.0)


def _probability(tree: Tree) -> jax.Array:
    """Return the drafter's path probabilities, float32 [B, N].

    Those that are not finite are 0: the figures of all slots would keep a NaN for ever.
    """
    return jnp.nan_to_num(jnp.exp(tree.logprob), nan=0.0, posinf=0.0)
