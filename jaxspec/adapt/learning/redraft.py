"""Draft the rounds of segments again, differentiably, through the drafter's own functions.

The drafter absorbs the rows before a round's root, proposes after the root, and takes its further
steps along the tokens that were committed. What it says there is its distribution at the positions
that the round verified, with a context cut to the segment. Drafters of several tokens a step draft
full blocks here, whatever the shape of the round's tree.

The committed text is known, so no round waits for another: they are drafted side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxspec.adapt.learning.rounds import Fold, States, Task, absorb_rows, draft_round, skip_unless
from jaxspec.adapt.learning.segments import Segments
from jaxspec.drafters.base import Drafter, TargetHead

# Rounds of every segment that are drafted side by side. More of them need more memory, and drafts
# that nobody reads fill them up.
SIDE = 8


def redraft(
    drafter: Drafter,
    versions: Sequence[Any],
    target: TargetHead,
    segments: Segments,
    wanted: jax.Array,
    fold: Fold,
) -> Any:
    """Draft rounds of S segments again.

    Args:
      versions: one or more sets of the drafter's variables.
      segments: their rounds have at most `drafter.depth` positions.
      wanted: [S, Q, D], above 0 at positions whose results are read. What only the others need is
        left out where that is cheap: chunks of rounds without any, and steps behind the last one.
      fold: makes the results of a step. Its intermediate values are computed again for gradients,
        so logits of `SIDE` rounds exist at a time.

    Returns:
      The results of `fold` [Q, S, D, ...]. Where none are wanted, they are zeros or those of
      whatever the drafter says there.
    """
    batch, rounds, depths = wanted.shape
    side = min(SIDE, rounds)
    # Positions up to the last one that is wanted. Rounds with many come first: then few chunks
    # take all steps, and the chunks at the end take none.
    reach = jnp.where(wanted > 0, jnp.arange(1, depths + 1), 0).max(-1)
    order = jnp.argsort(-reach, axis=1)

    def arrange(each: jax.Array) -> jax.Array:
        """Bring [S, Q] into this order and fill the last chunk up with zeros, [chunks * G, S]."""
        each = jnp.take_along_axis(each, order, axis=1)
        return jnp.pad(each, ((0, 0), (0, -rounds % side))).T

    def cut(leaf: jax.Array) -> jax.Array:
        return leaf.reshape(-1, side, *leaf.shape[1:])

    task = Task(drafter, versions, target, segments, fold)
    own, shared = absorb_rows(task, arrange(segments.begin))

    @jax.checkpoint
    def chunk(given: tuple[jax.Array, jax.Array, Any]) -> Any:
        q, far, own = given

        def draft(q: jax.Array, own: Any) -> Any:
            return draft_round(task, States(own, shared), q, far, depths)

        return skip_unless(far > 0, jax.vmap(draft), q, own)

    every = jnp.broadcast_to(jnp.arange(rounds, dtype=jnp.int32), (batch, rounds))
    far = cut(arrange(reach)).max((1, 2))
    found = jax.lax.map(chunk, (cut(arrange(every)), far, jax.tree.map(cut, own)))
    place = jnp.argsort(order, axis=1).T
    return jax.tree.map(
        lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[place, jnp.arange(batch)], found
    )
