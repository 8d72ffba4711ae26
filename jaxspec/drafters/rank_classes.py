"""Classes of ranks, and the loss of a head that predicts them (SpecBlock, section 3.3).

The rank of the target's token in a drafter's list decides how many siblings are worth verifying.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

# Ranks (from 0) below these are in class 0, 1, 2; others in class 3.
RANK_LIMITS = (1, 4, 10)
_RARE = 10  # a class with more slots than this gets a smaller weight


def classify_rank(rank: jax.Array) -> jax.Array:
    """Return the class int32 [...] of ranks int [...]."""
    return (rank[..., None] >= jnp.array(RANK_LIMITS)).sum(-1, dtype=jnp.int32)


def score_classes(logits: jax.Array, wanted: jax.Array) -> jax.Array:
    """Compute the cross-entropy float32 [...] with ordinal soft labels.

    Naming too low a class costs more than naming too high a class.

    Args:
      logits: float32 [..., C], of the head.
      wanted: int32 [...], the right classes.
    """
    classes = logits.shape[-1]
    away = np.arange(classes)[:, None] - np.arange(classes)  # [wanted, named]
    distance = 1.0 + np.abs(away) + np.maximum(away, 0)
    soft = distance**-2.0 / (distance**-2.0).sum(-1, keepdims=True)
    values = -(jnp.asarray(soft, jnp.float32)[wanted] * jax.nn.log_softmax(logits)).sum(-1)
    return values * jnp.asarray(distance, jnp.float32)[wanted, logits.argmax(-1)]


def weigh_classes(
    wanted: jax.Array, weight: jax.Array, axes: Sequence[int], classes: int
) -> jax.Array:
    """Lower the weights [...] of frequent classes; classes are counted over `axes`."""
    counts = (jax.nn.one_hot(wanted, classes) * weight[..., None]).sum(axes, keepdims=True)
    rare = jnp.minimum(1.0, _RARE / jnp.maximum(counts, 1))
    rare = jnp.broadcast_to(rare, (*wanted.shape, classes))
    return weight * jnp.take_along_axis(rare, wanted[..., None], axis=-1)[..., 0]
