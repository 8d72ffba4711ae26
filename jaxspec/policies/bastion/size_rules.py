"""Rules that choose how many rows of a sorted tree to verify, by expected tokens and time.

A tree's rows come in descending path probability, so its first N rows are the best tree of that
size (BASTION, Oh, Cao et al. 2026, arXiv 2605.29727, Prop. 2.3). N counts the root everywhere.
`worth[n - 1]` is the expected number of committed tokens of the first n rows and `seconds[n - 1]`
the time of a round that verifies them. The rules maximise their ratio, tokens per second.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

# Constants of BASTION's released code: the smallest size that it chooses, and the factor that all
# sizes share.
RELEASED_LEAST, RELEASED_STEP = 32, 32


def choose_best_ratio(worth: jax.Array, seconds: jax.Array) -> jax.Array:
    """Choose the size with the largest ratio: int32 [...].

    Measured latency is a staircase, which gives the ratio many peaks. This rule, which is not in
    the paper, finds the highest peak.
    """
    return jnp.argmax(worth / seconds, axis=-1).astype(jnp.int32) + 1


def choose_first_decrease(worth: jax.Array, seconds: jax.Array, least: int = 1) -> jax.Array:
    """Choose by the paper's proposition 2.4: int32 [...].

    It takes the first size of at least `least` after which the ratio does not increase. If the
    costs are convex (`jaxspec.costs.roofline.roofline_costs`), no size has a larger ratio.
    """
    rate = worth / seconds
    size = jnp.arange(1, rate.shape[-1] + 1)
    stops = (rate[..., 1:] <= rate[..., :-1]) & (size[:-1] >= least)
    # The last size stops where no other does.
    stops = jnp.concatenate([stops, jnp.ones_like(rate[..., :1], bool)], axis=-1)
    return jnp.argmax(stops, axis=-1).astype(jnp.int32) + 1


def choose_printed(worth: jax.Array, seconds: jax.Array) -> jax.Array:
    """Choose by the paper's algorithm 1 as it is printed: int32 [...].

    Its N counts drafted nodes, at least one, and it looks the latency up at N, so that the root
    costs nothing. Otherwise it is `choose_first_decrease`. What it prints about the nodes to push
    would leave out siblings at the last depth, against proposition 2.3; trees here follow that.
    """
    if worth.shape[-1] == 1:  # there is none
        return jnp.ones(worth.shape[:-1], jnp.int32)
    return choose_first_decrease(worth[..., 1:], seconds[..., :-1]) + 1


def choose_released(worth: jax.Array, seconds: jax.Array) -> jax.Array:
    """Choose by the released code's rule: int32 [...].

    It is `choose_first_decrease` from 32 rows on, rounded down to a multiple of 32; a smaller tree
    is verified whole.
    """
    size = choose_first_decrease(worth, seconds, RELEASED_LEAST)
    return jnp.where(size < RELEASED_LEAST, size, size - size % RELEASED_STEP)


SIZE_RULES: dict[str, Callable] = {
    "best": choose_best_ratio,
    "bastion-paper": choose_printed,
    "bastion-first-decrease": choose_first_decrease,
    "bastion-code": choose_released,
}
