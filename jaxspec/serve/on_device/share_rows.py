"""Share the rows of a round among the slots.

The expected number of tokens of a round is the sum, over its rows, of the probability that the
row's path is accepted (BASTION's estimate, summed over slots). Verification is compiled for some
numbers of rows, so the time of a round is a staircase of their number R, and the best R is at an
edge. Given R, the R best rows of all slots have the largest sum. Rows of a slot are sorted, so
those of them that are among the best are the first rows of its tree, which is a tree again. Weights
and bounds of slots change neither argument. Choosing the edge with the largest ratio is therefore
exact.

B slots, N rows of a tree, E edges.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

RULES = ("global", "equal", "fixed", "ar")
"""How rows are shared: the best rows of all slots and the best R; the same number for each slot and
the best R; always the budget; only roots, without a drafter."""

WEIGHING = ("global", "equal")
"""Rules that weigh what rounds cost, and so may let the drafters rest."""


class Offer(NamedTuple):
    """What the slots offer to a round.

    Attributes:
      score: float32 [B, N], probability that each row is accepted, non-increasing; the root's is 1.
      size: int32 [B], rows of each tree; 0 for slots that do not decode.
      weight: float32 [B], above 0.
      low, high: int32 [B], least and most rows of each slot, if its tree has as many.
    """

    score: jax.Array
    size: jax.Array
    weight: jax.Array
    low: jax.Array
    high: jax.Array


class Shared(NamedTuple):
    """Rows of a round.

    Attributes:
      rows: int32 [B], rows of each slot.
      edge: int32 [], index of the edge.
      value: float32 [], expected tokens, weighted.
    """

    rows: jax.Array
    edge: jax.Array
    value: jax.Array


def share_rows(
    rule: str, offer: Offer, edges: tuple[int, ...], seconds: jax.Array, forced: jax.Array
) -> Shared:
    """Choose the number of rows and share them.

    Args:
      rule: one of `RULES` but `ar`, whose rounds have nothing to share.
      edges: rising; the last one is at least the sum of all `low`.
      seconds: float32 [E], time of a round of each edge.
      forced: int32 [], index of the edge to take instead of the best one; -1 for none.
    """
    if rule == "fixed":
        rows = _fit(jnp.minimum(offer.size, offer.high), edges[-1])
        smallest = (rows.sum() > np.asarray(edges)[:-1]).sum(dtype=jnp.int32)
        edge = jnp.where(forced < 0, smallest, forced)
        return Shared(rows, edge, _value(offer, rows))
    rank = _rank(offer, best_first=rule == "global")
    counts = jnp.stack([_count(rank, offer, edge) for edge in edges])
    values = jax.vmap(lambda rows: _value(offer, rows))(counts)
    needed = jnp.minimum(offer.low, offer.size).sum()
    ratio = jnp.where(np.asarray(edges) >= needed, values / seconds, -jnp.inf)
    edge = jnp.where(forced < 0, jnp.argmax(ratio).astype(jnp.int32), forced)
    return Shared(counts[edge], edge, values[edge])


def _available(offer: Offer) -> jax.Array:
    """Return the most rows that each slot can use, int32 [B]."""
    return jnp.minimum(offer.size, jnp.maximum(offer.high, offer.low))


def _rank(offer: Offer, best_first: bool) -> jax.Array:
    """Rank the rows of all slots, int32 [B, N]: by value, or else by their number in the tree.

    Rows that a slot must have come first, rows that it cannot have last. Among equals, the lower
    row and then the lower slot comes first.
    """
    slots, rows = offer.score.shape
    row = jnp.arange(rows)
    by_number = jnp.broadcast_to(-row.astype(jnp.float32), offer.score.shape)
    value = offer.weight[:, None] * offer.score if best_first else by_number
    value = jnp.where(row < offer.low[:, None], jnp.inf, value)
    value = jnp.where(row < _available(offer)[:, None], value, -jnp.inf)
    index = jnp.arange(slots * rows, dtype=jnp.int32)
    order = jax.lax.sort((-value.T.reshape(-1), index), num_keys=2)[1]
    return jnp.zeros_like(index).at[order].set(index).reshape(rows, slots).T


def _count(rank: jax.Array, offer: Offer, edge: int) -> jax.Array:
    """Count the rows of each slot among the first `edge` of all, int32 [B]."""
    row = jnp.arange(rank.shape[1])
    taken = (rank < edge) & (row < _available(offer)[:, None])
    return taken.sum(-1, dtype=jnp.int32)


def _value(offer: Offer, rows: jax.Array) -> jax.Array:
    """Return the expected tokens, weighted, of the first `rows` int32 [B] of each slot."""
    taken = jnp.arange(offer.score.shape[1]) < rows[:, None]
    return (offer.weight[:, None] * jnp.where(taken, offer.score, 0.0)).sum()


def _fit(rows: jax.Array, most: int) -> jax.Array:
    """Cut the rows of all slots alike until they fit into the largest edge."""
    slots = rows.shape[0]
    share = jnp.maximum(most // slots, 1)
    return jnp.where(rows.sum() > most, jnp.minimum(rows, share), rows)
