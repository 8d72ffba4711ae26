"""Correct the drafter's path probabilities by what was accepted, depth by depth.

A drafter that is too sure of itself would take rows from others. Each depth keeps the number of rows
that were accepted and the number that the scores promised, of all rows verified lately; their ratio
corrects the scores.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxspec.core.state import Accepted, Tree

# Rows of a depth that a new engine is taken to have seen, and the share of what was seen that a round
# keeps: about the last hundred rounds count.
_PRIOR, _KEPT = 8.0, 0.99


def calibrate(tree: Tree, hits: jax.Array, expected: jax.Array) -> jax.Array:
    """Return the probability that each row is accepted, float32 [B, N], non-increasing.

    Args:
      tree: rows sorted by log-probability.
      hits, expected: float32 [A], see `observe_rows`.
    """
    ratio = (hits + _PRIOR) / (expected + _PRIOR)
    raw = _probability(tree)
    # A correction that varies with depth may change the order. A row is worth no more than those
    # that must be taken before it.
    score = jax.lax.cummin(jnp.minimum(raw * ratio[tree.depth], 1.0), axis=1)
    return score.at[:, 0].set(1.0)


def observe_rows(
    tree: Tree, accepted: Accepted, live: jax.Array, hits: jax.Array, expected: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Count the verified rows of live slots bool [B], per depth.

    Args:
      tree: as verified.
      accepted: its path before a stop or a limit cuts it.
      hits, expected: float32 [A], accepted rows and the sum of their raw probabilities.
    """
    rows, depths = jnp.arange(tree.token.shape[1]), jnp.arange(hits.shape[0])
    verified = (rows > 0) & (rows < tree.size[:, None]) & live[:, None]
    on_path = (accepted.path[:, :, None] == rows).any(1) & (rows > 0)
    at = verified[..., None] & (tree.depth[..., None] == depths)
    found = (at & on_path[..., None]).sum((0, 1)).astype(jnp.float32)
    promised = jnp.where(at, _probability(tree)[..., None], 0.0).sum((0, 1))
    return _KEPT * hits + found, _KEPT * expected + promised


def _probability(tree: Tree) -> jax.Array:
    """Return the drafter's path probabilities, float32 [B, N].

    Those that are not finite are 0: the figures of all slots would keep a NaN for ever.
    """
    return jnp.nan_to_num(jnp.exp(tree.logprob), nan=0.0, posinf=0.0)
