"""What training carries, and how gradients change it.

AdamW with betas (.9, .95), no weight decay and gradients clipped to .5, as SpecBlock is trained
before deployment.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxspec.adapt.actions import FULL, HEAD, Leaves, merge_leaves, select_leaves


@dataclasses.dataclass(frozen=True)
class LearnerOptions:
    """Options of updates.

    Attributes:
      head_rate, full_rate: learning rates of the actions.
      clip: global norm to which gradients are clipped.
      anchor: lambda, the weight of the divergence from the weights before deployment.
      batch: segments of a gradient step.
    """

    head_rate: float = 1e-4
    full_rate: float = 3e-5
    clip: float = 0.5
    anchor: float = 0.01
    batch: int = 4

    def pad(self, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Fill the entries `chosen` int [n] up to a batch; return them, and which are used."""
        ids = np.zeros(self.batch, np.int32)
        ids[: len(chosen)] = chosen
        return ids, np.arange(self.batch) < len(chosen)


class Train(NamedTuple):
    """What training carries.

    Attributes:
      theta: float32 master weights.
      moments: {action: state of its optimizer}.
    """

    theta: Any
    moments: dict[str, Any]


class Slopes(NamedTuple):
    """The loss of a step and its gradients.

    Attributes:
      loss: float32 [], and terms: those of `objective.average_loss`.
      leaves: gradients of the arrays that the action changes.
    """

    loss: jax.Array
    terms: dict[str, jax.Array]
    leaves: Leaves


def make_optimizers(options: LearnerOptions) -> dict[str, Any]:
    """Make the optimizer of each action."""
    return {HEAD: _adamw(options.head_rate, options), FULL: _adamw(options.full_rate, options)}


def apply_slopes(
    optimizers: dict[str, Any], train: Train, action: str, slopes: Slopes
) -> tuple[Train, dict[str, jax.Array]]:
    """Change the arrays of an action; return what training carries, and the terms of the loss."""
    import optax

    leaves = select_leaves(train.theta, action)
    updates, moments = optimizers[action].update(slopes.leaves, train.moments[action], leaves)
    theta = merge_leaves(train.theta, optax.apply_updates(leaves, updates))
    terms = slopes.terms | {"loss": slopes.loss}
    return Train(theta, train.moments | {action: moments}), terms


def _adamw(rate: float, options: LearnerOptions) -> Any:
    import optax

    return optax.chain(
        optax.clip_by_global_norm(options.clip), optax.adamw(rate, 0.9, 0.95, weight_decay=0.0)
    )
