"""Observations of LTD's two policies, in the layout of the released code.

Zhang et al. 2026 (Learning to Draft), section 4: a dynamic tree that drafts from W nodes of a level
has W candidates after the root's proposal and W * W more after every draft step. The depth policy
reads the candidates of the last step, the size policy all candidates in the order of generation.
Both read the context length and the number of steps, repeated so that they are not lost among
hundreds of scores. With W = 10 and 12 steps these are the published 128 and 1268 numbers.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

LENGTH_SCALE, STEP_SCALE = 1000.0, 10.0
DEPTH_COPIES, SIZE_COPIES = 14, 29
# Inputs of the networks (the paper's table 6): P, path log-probabilities; L, the context length; D,
# the depth. Of these, inputs that are left out are zero, so that networks keep their sizes. H, the
# drafter's hidden state, and E, the entropies of its distributions, come after all others.
OBSERVES = ("P", "P+L", "P+D", "P+D+L", "P+D+L+H", "P+D+L+E")
# Unused candidates have -inf. The score of a verified path is never near this value.
FLOOR = -100.0


def pool_size(width: int, steps) -> int:
    """Count the candidates after `steps` draft steps (numbers or arrays)."""
    return width + width * width * steps


def steps_taken(scores: jax.Array, width: int) -> jax.Array:
    """Count the draft steps that left candidates in pools: int32 [...].

    Args:
      scores: [..., P], path log-probabilities of the pool; -inf marks empty slots.
      width: W.
    """
    later = scores[..., width:].reshape(*scores.shape[:-1], -1, width * width)
    return jnp.sum(jnp.any(later > -jnp.inf, axis=-1), axis=-1, dtype=jnp.int32)


class Beyond(NamedTuple):
    """What policies observe beyond P, D and L, of the last level of a dynamic tree.

    Attributes:
      entropy: float [..., W], E: for each of the W best nodes of the level, best first, the entropy
        in nats of the distribution that it was drawn from; 0 for no node.
      hidden: float [..., K], H: the drafter's hidden state that the distribution of the best of
        these nodes was projected from, as the drafter gives it.
    """

    entropy: jax.Array | None = None
    hidden: jax.Array | None = None


NOTHING = Beyond()


def beyond_inputs(observes: str, width: int, hidden: int) -> int:
    """Return the number of inputs of `Beyond`, for hidden states of `hidden` numbers."""
    return ("E" in observes) * width + ("H" in observes) * hidden


def depth_inputs(width: int, observes: str = "P+D+L", hidden: int = 0) -> int:
    """Return the length of `depth_observation`."""
    return width * width + 2 * DEPTH_COPIES + beyond_inputs(observes, width, hidden)


def size_inputs(scores: int, observes: str = "P+D+L", width: int = 0, hidden: int = 0) -> int:
    """Return the length of `size_observation` and `tree_observation` for this many scores."""
    return scores + 2 * SIZE_COPIES + beyond_inputs(observes, width, hidden)


def depth_observation(
    scores: jax.Array,
    context: jax.Array,
    steps: jax.Array,
    width: int,
    observes: str = "P+D+L",
    beyond: Beyond = NOTHING,
) -> jax.Array:
    """Make the depth policy's input, float32 [..., `depth_inputs`].

    It holds the log-probabilities of the last step's candidates, context / 1000 and steps / 10,
    each of the two 14 times, and what `observes` names beyond.

    Args:
      scores: [..., P], path log-probabilities of the pool, any float dtype; P holds `steps` steps.
      context: int32 [...], cached tokens.
      steps: int32 [] or [...]; for 0 steps the input has the W candidates of the root, then zeros.
      width: W.
      observes: one of `OBSERVES`.
      beyond: what it names beyond P, D and L, after these steps.
    """
    steps = jnp.broadcast_to(steps, context.shape)
    first = jnp.where(steps > 0, pool_size(width, steps - 1), 0)
    index = first[..., None] + jnp.arange(width * width)
    last = jnp.take_along_axis(scores, index, axis=-1).astype(jnp.float32)
    last = jnp.where(index < pool_size(width, steps)[..., None], jnp.maximum(last, FLOOR), 0.0)
    situation = _situation(context, steps, DEPTH_COPIES, observes)
    return jnp.concatenate([last, *situation, *_named(beyond, observes)], axis=-1)


def size_observation(
    scores: jax.Array,
    context: jax.Array,
    steps: jax.Array,
    width: int,
    observes: str = "P+D+L",
    beyond: Beyond = NOTHING,
) -> jax.Array:
    """Make the size policy's input for a pool, float32 [..., `size_inputs`].

    It holds the log-probabilities of the whole pool (zeros for steps not taken), context / 1000 and
    steps / 10, each of the two 29 times, and what `observes` names beyond. The arguments are those
    of `depth_observation`.
    """
    steps = jnp.broadcast_to(steps, context.shape)
    known = jnp.arange(scores.shape[-1]) < pool_size(width, steps)[..., None]
    shown = jnp.where(known, jnp.maximum(scores.astype(jnp.float32), FLOOR), 0.0)
    situation = _situation(context, steps, SIZE_COPIES, observes)
    return jnp.concatenate([shown, *situation, *_named(beyond, observes)], axis=-1)


def tree_observation(scores: jax.Array, context: jax.Array, observes: str = "P+D+L") -> jax.Array:
    """Make the size policy's input for a tree of another builder, float32 [..., N - 1 + 58].

    Args:
      scores: [..., N - 1], log-probabilities of the rows after the root, best first; padding is
        -inf.
      context: int32 [...], cached tokens.
      observes: one of `OBSERVES`; the depth is 0 here.
    """
    shown = jnp.maximum(scores.astype(jnp.float32), FLOOR)
    return jnp.concatenate(
        [shown, *_situation(context, jnp.zeros_like(context), SIZE_COPIES, observes)], axis=-1
    )


def allowed_sizes(sizes: tuple[int, ...], available: jax.Array) -> jax.Array:
    """Mark the sizes that verify more rows than the next smaller size: bool [..., A].

    Args:
      sizes: A numbers of rows, ascending.
      available: int32 [...], rows of the tree.
    """
    smaller = jnp.array((0, *sizes[:-1]), jnp.int32)
    return smaller < available[..., None]


def _situation(
    context: jax.Array, steps: jax.Array, copies: int, observes: str
) -> tuple[jax.Array, jax.Array]:
    scaled = {
        "L": context.astype(jnp.float32) / LENGTH_SCALE,
        "D": steps.astype(jnp.float32) / STEP_SCALE,
    }
    shown = (value if name in observes else jnp.zeros_like(value) for name, value in scaled.items())
    return tuple(jnp.broadcast_to(value[..., None], (*context.shape, copies)) for value in shown)


def _named(beyond: Beyond, observes: str) -> list[jax.Array]:
    """Return the parts of `beyond` that `observes` names."""
    parts = {"E": beyond.entropy, "H": beyond.hidden}
    return [jnp.asarray(part, jnp.float32) for name, part in parts.items() if name in observes]
