"""The learner: float32 master weights of a drafter, their optimizer, and gradient steps.

The weights that decode are another copy, see `jaxspec.adapt.publish`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.adapt.actions import ACTIONS, Leaves, merge_leaves, select_leaves
from jaxspec.adapt.learning.head_learner import HeadLearner
from jaxspec.adapt.learning.objective import average_loss, judge
from jaxspec.adapt.learning.optimize import (
    LearnerOptions,
    Slopes,
    Train,
    apply_slopes,
    make_optimizers,
)
from jaxspec.adapt.learning.segments import Segments, take_segments
from jaxspec.core.config import TargetConfig
from jaxspec.drafters.base import TargetHead
from jaxspec.drafters.registry import make_drafter
from jaxspec.round.quick_jit import QuickJit
from jaxspec.targets.transformer import Transformer
from pallas_kernels import registry


class Learner:
    """The compiled functions that train one drafter.

    Args:
      config: of the drafter. target: config of the target.
      options: see `LearnerOptions`.

    Attributes:
      head: what trains the head from kept trunk outputs; None where the drafter has no output
        projection of its own.
    """

    def __init__(self, config: Any, target: TargetConfig, options: LearnerOptions):
        self.drafter, self.target, self.options = make_drafter(config), target, options
        self.optimizers = make_optimizers(options)
        self._step = QuickJit(
            self._take_step, static_argnames=("action", "anchored"), donate_argnums=0
        )
        self._judge = QuickJit(self._judge_segments)
        self.head = None
        if self.drafter.project is not None:
            self.head = HeadLearner(self.drafter, self._head, self.optimizers, options)

    def begin(self, params: Any) -> Train:
        """Start from the drafter's weights, which are copied."""
        theta = jax.tree.map(lambda leaf: jnp.array(leaf, jnp.float32, copy=True), params)
        return Train(theta, self.fresh_moments(theta))

    def fresh_moments(self, theta: Any) -> dict[str, Any]:
        """Return optimizer states without memory."""
        return {name: self.optimizers[name].init(select_leaves(theta, name)) for name in ACTIONS}

    def step(
        self,
        train: Train,
        action: str,
        start: Any,
        rest: Mapping[str, Any],
        target: Any,
        ring: Segments,
        chosen: np.ndarray,
        anchored: bool = True,
    ) -> tuple[Train, dict[str, jax.Array]]:
        """Take a gradient step on the segments `chosen` int [n], at most `batch` of them.

        Args:
          train: it is donated.
          start: the drafter's weights before deployment.
          rest: the drafter's variables that are not trained.
          target: the target's variables.
          anchored: whether to add the divergence from `start`.
        """
        ids, used = self.options.pad(chosen)
        with registry.using("reference"):  # kernels have no gradients
            return self._step(
                train, start, dict(rest), target, ring, ids, used, action=action, anchored=anchored
            )

    def judge(
        self,
        params: Any,
        rest: Mapping[str, Any],
        target: Any,
        ring: Segments,
        chosen: np.ndarray,
        wanted: jax.Array,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Compare weights with the target on the segments `chosen` int [n].

        Args:
          wanted: [N, Q, D] of the ring, above 0 at positions that are read, such as `ring.held`.

        Returns:
          hit bool and chance float32 [n, Q, D], see `jaxspec.adapt.learning.objective.Positions`.
        """
        hits, chances = [], []
        for begin in range(0, len(chosen), self.options.batch):
            some = chosen[begin : begin + self.options.batch]
            with registry.using("reference"):
                found = self._judge(
                    params, dict(rest), target, ring, wanted, *self.options.pad(some)
                )
            hit, chance = (np.asarray(x).swapaxes(0, 1)[: len(some)] for x in found)
            hits.append(hit)
            chances.append(chance)
        return np.concatenate(hits), np.concatenate(chances)

    def _head(self, target: Any) -> TargetHead:
        apply = functools.partial(Transformer(self.target).apply, target)
        return TargetHead(
            functools.partial(apply, method="embed"), functools.partial(apply, method="logits")
        )

    def find_slopes(
        self,
        train: Train,
        action: str,
        start: Any,
        rest: Mapping[str, Any],
        target: Any,
        segments: Segments,
        anchored: bool,
    ) -> Slopes:
        """Find the gradients of a step on segments, which are drafted again."""
        anchor, dtype = self.options.anchor, segments.features.dtype

        def variables(params: Any) -> Any:
            return {**rest, "params": jax.tree.map(lambda leaf: leaf.astype(dtype), params)}

        def loss(leaves: Leaves) -> tuple[jax.Array, dict[str, jax.Array]]:
            found = judge(
                self.drafter,
                variables(merge_leaves(train.theta, leaves)),
                self._head(target),
                segments,
                segments.weight,
                variables(start) if anchored and anchor else None,
            )
            return average_loss(found, segments, anchor)

        leaves = select_leaves(train.theta, action)
        (value, terms), slopes = jax.value_and_grad(loss, has_aux=True)(leaves)
        return Slopes(value, terms, slopes)

    def _take_step(
        self, train, start, rest, target, ring, ids, used, *, action: str, anchored: bool
    ) -> tuple[Train, dict[str, jax.Array]]:
        segments = take_segments(ring, ids, used)
        slopes = self.find_slopes(train, action, start, rest, target, segments, anchored)
        return apply_slopes(self.optimizers, train, action, slopes)

    def _judge_segments(self, params, rest, target, ring, wanted, ids, used):
        segments = take_segments(ring, ids, used)
        dtype = segments.features.dtype
        cast = jax.tree.map(lambda leaf: leaf.astype(dtype), params)
        found = judge(
            self.drafter,
            {**rest, "params": cast},
            self._head(target),
            segments,
            wanted[ids] * used[:, None, None],
        )
        return found.hit, found.chance


@functools.lru_cache(maxsize=8)
def make_learner(config: Any, target: TargetConfig, options: LearnerOptions) -> Learner:
    """Return the learner of these settings, so that sessions of a process share its programs."""
    return Learner(config, target, options)
