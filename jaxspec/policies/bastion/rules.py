"""How many rows of a sorted tree to verify: rules over what each size is worth and what it costs.

A tree's rows come in falling path probability, so that its first N rows are the best tree of that
size (BASTION, Zheng et al. 2026, Prop. 2.3). N counts the root everywhere. `worth[n - 1]` is the
expected number of committed tokens of the first n rows and `seconds[n - 1]` the time of a round
that verifies them; what is maximised is their ratio, tokens per second.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

# Constants of BASTION's released code: sizes below the first are never chosen, and sizes are
# multiples of the second.
RELEASED_LEAST, RELEASED_STEP = 32, 32


def surrogate(logprob: jax.Array) -> jax.Array:
    """Expected committed tokens float32 [..., N] of each prefix of a tree: sums of path
    probabilities, the root's 1 included.

    Args:
      logprob: float32 [..., N], cumulative log-probabilities, -inf for rows that do not exist.
    """
    return jnp.cumsum(jnp.exp(logprob), axis=-1)


def best(worth: jax.Array, seconds: jax.Array) -> jax.Array:
    """The size with the largest ratio, int32 [...]: ours. A staircase of latency has many peaks,
    this finds the highest.
    """
    return jnp.argmax(worth / seconds, axis=-1).astype(jnp.int32) + 1


def first_decrease(worth: jax.Array, seconds: jax.Array, least: int = 1) -> jax.Array:
    """The paper's rule (Prop. 2.4): the first size, at least `least`, whose successor has no larger
    ratio; int32 [...].
    """
    rate = worth / seconds
    size = jnp.arange(1, rate.shape[-1] + 1)
    stops = (rate[..., 1:] <= rate[..., :-1]) & (size[:-1] >= least)
    return jnp.where(stops.any(-1), jnp.argmax(stops, axis=-1) + 1, rate.shape[-1]).astype(
        jnp.int32
    )


def printed(worth: jax.Array, seconds: jax.Array) -> jax.Array:
    """Algorithm 1 as printed: it counts drafted nodes, and charges the latency of so many rows, one
    too few; drafted nodes.
    """
    return first_decrease(worth[..., 1:], seconds[..., :-1])


def released(worth: jax.Array, seconds: jax.Array) -> jax.Array:
    """The released code's rule: `first_decrease` from 32 rows on, cut to a multiple of 32; a
    smaller tree is verified whole.
    """
    size = first_decrease(worth, seconds, RELEASED_LEAST)
    return jnp.where(size < RELEASED_LEAST, size, size - size % RELEASED_STEP)


RULES: dict[str, Callable] = {
    "best": best,
    "bastion-paper": first_decrease,
    "bastion-code": released,
}
