"""Thresholds of the rules that stop the growth of a tree.

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
    """Make the controls from a number."""
    return Threshold(jnp.float32(threshold), weights)


def replace_threshold(policy: Policy, threshold: float) -> Policy:
    """Replace the threshold of a rule's policy."""
    return policy.replace(controls=policy.controls.replace(threshold=jnp.float32(threshold)))


def take_best(values: jax.Array, frontier: jax.Array) -> jax.Array:
    """Take the values of the frontier node with the largest path log-probability.

    Among ties the first node wins.

    Args:
      values: [B, M, ...].
      frontier: float32 [B, M], path log-probabilities; -inf marks an empty slot.

    Returns:
      [B, ...].
    """
    best = jnp.argmax(frontier, axis=1).reshape(-1, 1, *(1,) * (values.ndim - 2))
    return jnp.take_along_axis(values, best, axis=1)[:, 0]
