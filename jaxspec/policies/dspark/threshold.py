"""DSpark's static threshold: verify a chain up to the first token that will hardly be accepted.

Source: DeepSpec's released code. The number is compared with the conditional probability of every
token, not with that of the path. The builder `chain+confidence` takes these probabilities from the
drafter's confidence head, `chain` from its distributions.
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp

from jaxspec.policies.dspark.chain_rows import conditional
from jaxspec.policies.protocol import Acts, Functions, Policy, PolicyConfig, keep_state
from jaxspec.policies.registry import register, tagged
from jaxspec.policies.stopping import make_threshold


@tagged("dspark-threshold")
@dataclasses.dataclass(frozen=True)
class ThresholdConfig(PolicyConfig):
    """The rule has no static choices of its own."""

    def functions(self) -> Functions:
        return _functions()


def make_dspark_threshold(threshold: float | str = 0.5, widths: tuple[int, ...] = ()) -> Policy:
    """Make the policy.

    Args:
      threshold: smallest probability of a token that is verified. 0 verifies whole chains.
      widths: see `PolicyConfig`.

    Raises:
      ValueError: the threshold is not in 0 to 1.
    """
    try:
        value = float(threshold)
    except ValueError:
        value = float("nan")
    if not 0 <= value <= 1:
        raise ValueError(f"threshold is {threshold}: give a probability from 0 to 1")
    return Policy(ThresholdConfig(tuple(widths)), make_threshold(value))


def count_confident(probability: jax.Array, threshold: jax.Array) -> jax.Array:
    """Count the tokens before the first whose probability is below the threshold: int32 [B].

    Args:
      probability: float32 [B, D], see `chain_rows.conditional`.
      threshold: float32 [].
    """
    return jnp.sum(jnp.cumprod(probability >= threshold, axis=1), axis=1, dtype=jnp.int32)


@functools.lru_cache
def _functions() -> Functions:
    def rows(controls, state, seen):
        return 1 + count_confident(conditional(seen.tree.logprob), controls.threshold)

    return Functions(lambda shape: (), Acts(rows=rows), keep_state, chains=True)


register("dspark-threshold", make_dspark_threshold, argument="THRESHOLD")
