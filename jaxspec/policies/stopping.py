"""Stop drafting at a threshold: what rules over a growing tree share.

The threshold is an array, so that a search over thresholds compiles once.
"""

from __future__ import annotations

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from jaxspec.policies.protocol import Policy
from jaxspec.policies.registry import tagged


@tagged("threshold")
class Threshold(flax.struct.PyTreeNode):
    """Controls of a rule with a threshold.

    Attributes:
      threshold: float32 [].
      weights: of the rule's network; () without a network.
    """

    threshold: jax.Array
    weights: Any = ()


def make_threshold(threshold: float, weights: Any = ()) -> Threshold:
    """Controls from a number."""
    return Threshold(jnp.float32(threshold), weights)


def replace_threshold(policy: Policy, threshold: float) -> Policy:
    """A rule's policy with another threshold."""
    return policy.replace(controls=policy.controls.replace(threshold=jnp.float32(threshold)))


def take_best(values: jax.Array, frontier: jax.Array) -> jax.Array:
    """`values` [B, M, ...] of the frontier node with the largest path log-probability, [B, ...];
    the first of equals.

    Args:
      frontier: float32 [B, M], path log-probabilities; -inf marks an empty slot.
    """
    best = jnp.argmax(frontier, axis=1).reshape(-1, 1, *(1,) * (values.ndim - 2))
    return jnp.take_along_axis(values, best, axis=1)[:, 0]
