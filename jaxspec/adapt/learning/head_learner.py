"""The learner of head-only updates: gradient steps, tests and signals from kept trunk outputs.

It serves drafters with an output projection of their own (`Drafter.project`). Those that borrow the
target's have none: their head is the last block, whose attention reads the context again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.adapt.actions import HEAD, Leaves, merge_leaves, select_leaves
from jaxspec.adapt.learning.objective import average_loss
from jaxspec.adapt.learning.optimize import LearnerOptions, Slopes, Train, apply_slopes
from jaxspec.adapt.learning.segments import Segments, take_segments
from jaxspec.adapt.learning.trunk import draft_outputs, judge_outputs, list_sizes
from jaxspec.drafters.base import Drafter, TargetHead
from jaxspec.round.quick_jit import QuickJit
from pallas_kernels import registry


class HeadLearner:
    """The compiled functions that train the head of one drafter.

    Args:
      drafter: it has `project`.
      borrow: variables of the target -> the functions that drafters borrow.
      optimizers: see `jaxspec.adapt.learning.optimize`.
      options: of updates.
    """

    def __init__(
        self,
        drafter: Drafter,
        borrow: Callable[[Any], TargetHead],
        optimizers: dict[str, Any],
        options: LearnerOptions,
    ):
        self.drafter, self.options = drafter, options
        self._borrow, self._optimizers = borrow, optimizers
        self._draft = QuickJit(self._draft_segments)
        self._write = jax.jit(_write_outputs, donate_argnums=0)
        self._step = jax.jit(self._take_step, static_argnames=("anchored",), donate_argnums=0)
        self._read = jax.jit(self._read_segments)

    def draft(
        self,
        params: Any,
        rest: Mapping[str, Any],
        target: Any,
        ring: Segments,
        outputs: jax.Array | None,
        chosen: np.ndarray,
    ) -> jax.Array:
        """Draft the segments `chosen` int [n], at most a batch, and keep their outputs.

        Args:
          outputs: [N, W, E] of the ring, donated; None before the first.
        """
        ids, used = self.options.pad(chosen)
        with registry.using("reference"):  # the same numbers as those of gradients
            found = self._draft(params, dict(rest), target, ring, ids, used)
        if outputs is None:
            outputs = jnp.zeros((ring.features.shape[0], *found.shape[1:]), found.dtype)
        return self._write(outputs, found, ids, used)

    def step(
        self,
        train: Train,
        start: Any,
        rest: Mapping[str, Any],
        ring: Segments,
        outputs: tuple[jax.Array, jax.Array],
        chosen: np.ndarray,
        anchored: bool = True,
    ) -> tuple[Train, dict[str, jax.Array]]:
        """Take a head-only gradient step on the segments `chosen` int [n], at most a batch.

        Args:
          train: it is donated.
          start: the drafter's weights before deployment.
          outputs: of the trunk of `train`, and of that of `start`, [N, W, E].
        """
        given = dict(rest), ring, outputs, *self.options.pad(chosen)
        return self._step(train, start, *given, anchored=anchored)

    def read(
        self,
        params: Any,
        rest: Mapping[str, Any],
        ring: Segments,
        outputs: jax.Array,
        chosen: np.ndarray,
        wanted: jax.Array,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Compare weights with the target, as `Learner.judge` does, from outputs of their trunk.

        Args:
          wanted: [N, Q, D] of the ring: some of `held`, `reject` and `weight`.
        """
        hits, chances = [], []
        for begin in range(0, len(chosen), self.options.batch):
            some = chosen[begin : begin + self.options.batch]
            found = self._read(params, dict(rest), ring, outputs, wanted, *self.options.pad(some))
            hit, chance = (np.asarray(x).swapaxes(0, 1)[: len(some)] for x in found)
            hits.append(hit)
            chances.append(chance)
        return np.concatenate(hits), np.concatenate(chances)

    def _draft_segments(self, params, rest, target, ring, ids, used) -> jax.Array:
        segments = take_segments(ring, ids, used)
        variables = _cast(params, rest, segments)
        return draft_outputs(self.drafter, variables, self._borrow(target), segments)

    def find_slopes(
        self,
        train: Train,
        start: Any,
        rest: Mapping[str, Any],
        segments: Segments,
        outputs: tuple[jax.Array, jax.Array],
        anchored: bool,
        count: int | None = None,
    ) -> Slopes:
        """Find the gradients of a head-only step.

        Args:
          outputs: of the segments.
          count: positions that are projected, at least those that are trained on; None: the
            smallest of `list_sizes` that is enough.
        """
        anchor, (own, before) = self.options.anchor, outputs
        given = (_cast(start, rest, segments), before) if anchored and anchor else None

        def loss(leaves: Leaves, count: int) -> tuple[jax.Array, dict[str, jax.Array]]:
            variables = _cast(merge_leaves(train.theta, leaves), rest, segments)
            found = judge_outputs(
                self.drafter, variables, segments, own, segments.weight, count, given
            )
            return average_loss(found, segments, anchor)

        leaves = select_leaves(train.theta, HEAD)

        def differentiate(count: int) -> Slopes:
            (value, terms), slopes = jax.value_and_grad(loss, has_aux=True)(leaves, count)
            return Slopes(value, terms, slopes)

        if count is not None:
            return differentiate(count)
        return _switch(own, segments.weight, differentiate)

    def _take_step(
        self, train, start, rest, ring, outputs, ids, used, *, anchored: bool
    ) -> tuple[Train, dict[str, jax.Array]]:
        segments = take_segments(ring, ids, used)
        own, before = (each[ids] for each in outputs)
        slopes = self.find_slopes(train, start, rest, segments, (own, before), anchored)
        return apply_slopes(self._optimizers, train, HEAD, slopes)

    def _read_segments(self, params, rest, ring, outputs, wanted, ids, used):
        segments, own = take_segments(ring, ids, used), outputs[ids]
        variables = _cast(params, rest, segments)
        reads = wanted[ids] * used[:, None, None]

        def judge(count: int) -> tuple[jax.Array, jax.Array]:
            found = judge_outputs(self.drafter, variables, segments, own, reads, count)
            return found.hit, found.chance

        return _switch(own, reads, judge)


def _switch(own: jax.Array, reads: jax.Array, work: Callable[[int], Any]) -> Any:
    """Do `work` for the smallest number of positions that holds those that are read."""
    sizes = list_sizes(own.shape[0] * own.shape[1])
    index = ((reads > 0).sum() > jnp.array(sizes[:-1])).sum()
    return jax.lax.switch(index, [functools.partial(work, size) for size in sizes])


def _cast(params: Any, rest: Mapping[str, Any], segments: Segments) -> dict[str, Any]:
    """Return a drafter's variables with trained weights in the dtype of features."""
    dtype = segments.features.dtype
    return {**rest, "params": jax.tree.map(lambda leaf: leaf.astype(dtype), params)}


def _write_outputs(
    outputs: jax.Array, found: jax.Array, ids: jax.Array, used: jax.Array
) -> jax.Array:
    return outputs.at[jnp.where(used, ids, len(outputs))].set(found, mode="drop")
