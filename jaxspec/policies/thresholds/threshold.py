"""What rules that compare with a threshold read. The threshold is an array, so that a search over
thresholds compiles once.
"""

from __future__ import annotations

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from jaxspec.policies.protocol import Policy


@flax.struct.dataclass
class Thresholded:
    """Attributes: threshold: float32 []. weights: of the rule's network; () of a rule that has
    none.
    """

    threshold: jax.Array
    weights: Any = ()


def thresholded(threshold: float, weights: Any = ()) -> Thresholded:
    """Controls from a number."""
    return Thresholded(jnp.float32(threshold), weights)


def with_threshold(policy: Policy, threshold: float) -> Policy:
    """A rule's policy with another threshold."""
    return policy.replace(controls=policy.controls.replace(threshold=jnp.float32(threshold)))
