"""Path scores as 64-bit fixed point in two uint32 words: exact sums and an exact order without float64.

A best-first tree is defined by the order of sums of log-probabilities, and near-ties are common. Float32 sums round
differently along different paths; float64 is off by default in JAX. A cost (minus a log-probability) is held as `hi` units of
2^-17 nats and `lo` units of 2^-49. Log-probabilities from a float32 log-softmax are multiples of 2^-46 or coarser, so that
their sums are exact here, as they are in the float64 arithmetic of DDTree's and JetSpec's reference code.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

_HI_BITS = 17
_MAX_NATS = 2.0**14
NEVER = np.uint32(0xFFFFFFFF)  # hi of a path that must not be used; it sorts after every real path


class Cost(NamedTuple):
    """Fixed-point cost of a path: `hi * 2^-17 + lo * 2^-49` nats, or unusable where `hi` is `NEVER`."""

    hi: jax.Array
    lo: jax.Array

    def at(self, index) -> Cost:
        return Cost(self.hi[index], self.lo[index])


def from_logprob(logprob: jax.Array, depth_limit: jax.Array) -> Cost:
    """Costs of one tree's candidates.

    Args:
      logprob: float32 [D, C]; values above 0 count as 0, values below -2^14 / D as that, -inf and NaN as unusable.
      depth_limit: int32 []; candidates at depths (row + 1) above it are unusable.
    """
    depths = logprob.shape[0]
    usable = (logprob > -jnp.inf) & (jnp.arange(depths) < depth_limit)[:, None]
    # Scaling by a power of two, the floor and the remainder are exact.
    units = jnp.clip(-logprob, 0.0, _MAX_NATS / depths) * 2.0**_HI_BITS
    whole = jnp.floor(units)
    hi, lo = whole.astype(jnp.uint32), ((units - whole) * 2.0**32).astype(jnp.uint32)
    return Cost(jnp.where(usable, hi, NEVER), jnp.where(usable, lo, 0))


def add(a: Cost, b: Cost) -> Cost:
    """Sum of two costs, unusable where either is."""
    lo = a.lo + b.lo
    hi = a.hi + b.hi + (lo < b.lo)
    usable = (a.hi != NEVER) & (b.hi != NEVER)
    return Cost(jnp.where(usable, hi, NEVER), lo)


def to_logprob(cost: Cost) -> jax.Array:
    """float32 log-probabilities, non-increasing wherever the costs are non-decreasing."""
    nats = cost.hi.astype(jnp.float32) * 2.0**-_HI_BITS + cost.lo.astype(jnp.float32) * 2.0 ** -(_HI_BITS + 32)
    return jnp.where(cost.hi == NEVER, -jnp.inf, 0.0 - nats)
