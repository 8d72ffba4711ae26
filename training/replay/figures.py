"""What policies observe of draft distributions after every number of steps, from one full pool.

A dynamic tree of width W drafts W candidates from every node, so candidate e of its pool comes from
the draft distribution number e // W of the round.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxspec.policies.learned.ltd_features import pool_size
from jaxspec.round.stop_rule import Sources


def find_figures(
    own: jax.Array, shown: jax.Array, sources: Sources, width: int, steps: int
) -> dict[str, jax.Array]:
    """Find the figures of the nodes that each step drafts from (no batch axis).

    Args:
      own: float32 [P], path log-probabilities by which the tree grew; -inf marks empty slots.
      shown: float32 [P], those that the policy reads.
      sources: figures of the round's distributions, [slots, ...].
      width: W.
      steps: draft steps after the root's.

    Returns:
      Of the figures that `sources` has, as in `ltd_features.Beyond`: `entropy` float32
      [steps + 1, W] and `hidden` float32 [steps + 1, E].
    """
    found = [_at_level(own, shown, sources, width, taken) for taken in range(steps + 1)]
    return {name: jnp.stack([one[name] for one in found]) for name in found[0]}


def _at_level(
    own: jax.Array, shown: jax.Array, sources: Sources, width: int, taken: int
) -> dict[str, jax.Array]:
    first, end = (pool_size(width, count) if count >= 0 else 0 for count in (taken - 1, taken))
    best, place = jax.lax.top_k(own[first:end], width)
    node, there = first + place, best > -jnp.inf
    found = {}
    if sources.entropy is not None:
        found["entropy"] = jnp.where(there, sources.entropy[node // width], 0.0)
    if sources.hidden is not None:
        likeliest = node[jnp.argmax(jnp.where(there, shown[node], -jnp.inf))]
        found["hidden"] = sources.hidden[likeliest // width].astype(jnp.float32)
    return found
