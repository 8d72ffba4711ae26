"""Path scores as 64-bit fixed point in two uint32 words: exact sums and order without float64.

A best-first tree is defined by the order of sums of log-probabilities, and near-ties are common.
Float32 sums round differently along different paths; float64 is off by default in JAX. A cost
(minus a log-probability) is held as `hi` units of 2^-17 nats and `lo` units of 2^-49 nats.
Log-probabilities from a float32 log-softmax are multiples of 2^-46 or coarser, so their sums are
exact here, as they are in the float64 arithmetic of DDTree's and JetSpec's reference code.

`Score` chooses what a step costs. Every cost is non-negative and does not decrease with the rank at
a depth. All builders rely on this: no child comes before its parent, and no sibling before a
better-ranked one.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.core.runtime.near_miss import choose_one

SCORES = ("logprob", "entropy", "hybrid")
DEFAULT_ENTROPY_WEIGHT = 0.1

_HI_BITS = 17
_MAX_NATS = 2.0**14
NEVER = np.uint32(0xFFFFFFFF)  # hi of a path that must not be used; it sorts after every real path


class Score(NamedTuple):
    """The quantity that orders paths: JetSpec's scoring ablation.

    See appendix C of the paper and `entropy_score` in the history of its code.

    Attributes:
      name: `logprob`: the path's log-probability; `entropy`: minus the summed entropies (nats) of
        the drafter's distributions at the depths of the path; `hybrid`: log-probability minus
        `weight` times these entropies.
      weight: lambda of `hybrid`, at least 0.
    """

    name: str = "logprob"
    weight: float = 0.0

    def __str__(self) -> str:
        return f"{self.name}{self.weight:g}" if self.name == "hybrid" else self.name


LOGPROB = Score()


def make_score(name: str = "logprob", entropy_weight: float | None = None) -> Score:
    """Make the score called `name`.

    Args:
      name: one of `SCORES`.
      entropy_weight: lambda of `hybrid` (0.1 if None); must be None for other scores.

    Raises:
      ValueError: unknown name, or a weight out of range.
    """
    if name not in SCORES:
        raise ValueError(f"unknown score {name!r}: {choose_one(name, SCORES)}")
    if name != "hybrid":
        if entropy_weight is not None:
            raise ValueError(f"entropy_weight is for score 'hybrid': leave it out with {name!r}")
        return Score(name)
    weight = DEFAULT_ENTROPY_WEIGHT if entropy_weight is None else entropy_weight
    # Below 0 a child could come before its parent.
    if isinstance(weight, bool | str) or not 0 <= weight < float("inf"):
        raise ValueError(f"entropy_weight is {weight!r}: give a number of at least 0")
    return Score(name, float(weight))


class Cost(NamedTuple):
    """Fixed-point cost of a path: `hi * 2^-17 + lo * 2^-49` nats; unusable if `hi` is `NEVER`."""

    hi: jax.Array
    lo: jax.Array

    def at(self, index: jax.Array | tuple[int, ...]) -> Cost:
        return Cost(self.hi[index], self.lo[index])


def from_logprob(logprob: jax.Array, depth_limit: jax.Array) -> Cost:
    """Compute the costs of one tree's candidates.

    Args:
      logprob: float32 [D, C], see `candidate_costs`, where `depths` is D.
      depth_limit: int32 []; candidates at depths (row + 1) above it are unusable.
    """
    depths = logprob.shape[0]
    allowed = (jnp.arange(depths) < depth_limit)[:, None]
    return candidate_costs(jnp.where(allowed, logprob, -jnp.inf), depths)


def candidate_costs(logprob: jax.Array, depths: int) -> Cost:
    """Compute the costs of candidates of which a path holds up to `depths`.

    Args:
      logprob: float32 [...]; values above 0 count as 0, values below -2^14 / `depths` as that, -inf
        and NaN as unusable.
    """
    usable = logprob > -jnp.inf
    hi, lo = _fixed_point(-logprob, _MAX_NATS / depths)
    return Cost(jnp.where(usable, hi, NEVER), jnp.where(usable, lo, 0))


def step_costs(
    score: Score, logprob: jax.Array, entropy: jax.Array | None, depth_limit: jax.Array
) -> Cost:
    """Compute the costs of one tree's candidates under `score`.

    Args:
      logprob, depth_limit: see `from_logprob`.
      entropy: float32 [D], entropy in nats of the distribution at every depth; not read for score
        `logprob`. Weighted entropies above 2^13 / D count as that.
    """
    if score.name == "logprob":
        return from_logprob(logprob, depth_limit)
    own = logprob if score.name == "hybrid" else jnp.where(logprob > -jnp.inf, 0.0, -jnp.inf)
    weighted = entropy[:, None] * (score.weight if score.name == "hybrid" else 1.0)
    return add(
        from_logprob(own, depth_limit),
        Cost(*_fixed_point(weighted, _MAX_NATS / 2 / logprob.shape[0])),
    )


def own_costs(
    score: Score, logprob: jax.Array, entropy: jax.Array | None, depth_limit: jax.Array
) -> Cost | None:
    """Return `step_costs`, or None if the cost is minus `logprob`; takes the same arguments."""
    return None if score == LOGPROB else step_costs(score, logprob, entropy, depth_limit)


def _fixed_point(nats: jax.Array, most: float) -> tuple[jax.Array, jax.Array]:
    """Return (hi, lo) of `nats` (float32), clipped to 0..`most`."""
    # Scaling by a power of two, taking the floor and taking the remainder are exact.
    units = jnp.clip(nats, 0.0, most) * 2.0**_HI_BITS
    whole = jnp.floor(units)
    return whole.astype(jnp.uint32), ((units - whole) * 2.0**32).astype(jnp.uint32)


def add(a: Cost, b: Cost) -> Cost:
    """Add two costs; the sum is unusable where either is."""
    lo = a.lo + b.lo
    hi = a.hi + b.hi + (lo < b.lo)
    usable = (a.hi != NEVER) & (b.hi != NEVER)
    return Cost(jnp.where(usable, hi, NEVER), lo)


def to_logprob(cost: Cost) -> jax.Array:
    """Convert to float32 log-probabilities, non-increasing wherever costs are non-decreasing."""
    nats = cost.hi.astype(jnp.float32) * 2.0**-_HI_BITS + cost.lo.astype(jnp.float32) * 2.0 ** -(
        _HI_BITS + 32
    )
    return jnp.where(cost.hi == NEVER, -jnp.inf, 0.0 - nats)
