"""Make an update: train on an action's buffer, test the result, publish or refuse it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.adapt.deciders.base import Decider
from jaxspec.adapt.gate import Flips, count_flips
from jaxspec.adapt.learning.learner import Learner, LearnerOptions, Train, make_learner
from jaxspec.adapt.learning.segments import Segments
from jaxspec.adapt.publish import copy_weights
from jaxspec.adapt.turns import OwnDevice, Turns
from jaxspec.core.params import Params
from jaxspec.core.runtime.compilations import compilations

# Positions of a pass or a gradient step, as both are counted.
POSITIONS = 128
NO_FLIPS = Flips(0, 0, 0, 0)


@dataclasses.dataclass
class Trainer:
    """A drafter in training.

    Attributes:
      learner: its compiled functions.
      train: master weights and moments.
      start: the weights before deployment, float32.
      rest: the drafter's variables that are not trained.
      target: the target's variables.
      passes: forward passes over a batch of segments so far, for tests and errors; one that reads
        more than `POSITIONS` positions counts as several.
      turns: who else may use the device between two passes or gradient steps.
    """

    learner: Learner
    train: Train
    start: Any
    rest: dict[str, Any]
    target: Any
    passes: int = 0
    turns: Turns = dataclasses.field(default_factory=OwnDevice)

    def update(
        self, action: str, ring: Segments, chosen: np.ndarray, tested: np.ndarray, decider: Decider
    ) -> tuple[bool, Flips, int]:
        """Train on the segments `chosen` int [n], at least one, and test on those of `tested` int [m].

        Returns:
          Whether to publish it, what changed at held-out positions (nothing if the decider asks for
          no test), and the number of steps. A refused update leaves weights and moments as they
          were.
        """
        gated = decider.gated
        kept = jax.tree.map(jnp.copy, self.train) if gated else None
        before = self._hits(ring, tested) if gated else None
        size = self.learner.options.batch
        batches = [chosen[at : at + size] for at in range(0, len(chosen), size)]
        steps = len(batches) if decider.steps is None else decider.steps
        for step in range(steps):
            self.train, _ = self.learner.step(
                self.train,
                action,
                self.start,
                self.rest,
                self.target,
                ring,
                batches[step % len(batches)],
                anchored=decider.anchored,
            )
            self.turns.pause(self.train)
        if not gated:
            jax.block_until_ready(self.train)
            return True, NO_FLIPS, steps
        held = np.asarray(ring.held)[tested]
        flips = count_flips(before, self._hits(ring, tested), held)
        if flips.z <= 0:
            self.train = kept
        return flips.z > 0, flips, steps

    def compare(
        self, versions: Mapping[int, Any], ring: Segments, chosen: np.ndarray, trained: bool
    ) -> dict[int, Flips]:
        """Compare weights with those in training on segments `chosen` int [n].

        Args:
          versions: weights by number.
          trained: whether the segments were trained on; then held-out positions alone are read.

        Returns:
          What each of them changes.
        """
        wanted = ring.held if trained else reached(ring)
        inside = np.asarray(wanted)[chosen]
        now = self._judge(self.train.theta, ring, chosen, wanted)[0]
        return {
            number: count_flips(now, self._judge(theta, ring, chosen, wanted)[0], inside)
            for number, theta in versions.items()
        }

    def error(self, ring: Segments, chosen: np.ndarray) -> float:
        """Sum 1 - r over the rejected positions of segments, see `deciders.base.Query`."""
        judged = self._judge(self.train.theta, ring, chosen, ring.reject)[1]
        return float(((1 - judged) * np.asarray(ring.reject)[chosen]).sum())

    def time_pass(self, ring: Segments, wanted: jax.Array) -> float:
        """Time a pass over one batch of segments, in seconds; one that compiles is run again.

        Args:
          wanted: [N, Q, D] of the ring, positions that it reads.
        """
        some = np.arange(self.learner.options.batch) % ring.token.shape[0]
        began, compiled = 0.0, -1
        while compiled != compilations():
            began, compiled = self.turns.clock(), compilations()
            self._judge(self.train.theta, ring, some, wanted)
        return self.turns.clock() - began

    def rehearse_test(self, ring: Segments) -> None:
        """Run a pass as tests do, which compiles it."""
        dataclasses.replace(self, turns=OwnDevice()).time_pass(ring, ring.held)

    def rehearse(self, action: str, ring: Segments, chosen: np.ndarray, decider: Decider) -> None:
        """Make a short update of copies, which compiles what updates run, and change nothing."""
        kept = jax.tree.map(jnp.copy, self.train)
        twin = dataclasses.replace(self, train=kept, turns=OwnDevice())
        some = chosen[: self.learner.options.batch]
        twin.update(action, ring, some, some, decider._replace(steps=1))

    def restore(self, theta: Any) -> None:
        """Go back to weights, and forget the moments."""
        theta = jax.tree.map(lambda leaf: jnp.array(leaf, copy=True), theta)
        self.train = Train(theta, self.learner.fresh_moments(theta))

    def _hits(self, ring: Segments, chosen: np.ndarray) -> np.ndarray:
        """Return whether the drafter is right at held-out positions, bool [n, Q, D]."""
        return self._judge(self.train.theta, ring, chosen, ring.held)[0]

    def _judge(
        self, theta: Any, ring: Segments, chosen: np.ndarray, wanted: jax.Array
    ) -> tuple[np.ndarray, np.ndarray]:
        size, found = self.learner.options.batch, []
        batches = [chosen[at : at + size] for at in range(0, len(chosen), size)]
        read = float(np.asarray(wanted)[chosen].sum())
        self.passes += max(len(batches), math.ceil(read / POSITIONS))
        for batch in batches:
            given = theta, self.rest, self.target, ring, batch, wanted
            found.append(self.learner.judge(*given))
            self.turns.pause(found[-1])
        hits, chances = zip(*found, strict=True)
        return np.concatenate(hits), np.concatenate(chances)


@jax.jit
def reached(ring: Segments) -> jax.Array:
    """Return 1 at the positions that rounds committed, held out or not, float32 [N, Q, D]."""
    depth = jnp.arange(ring.held.shape[-1])
    return (depth < ring.count[..., None]).astype(ring.held.dtype)


@jax.jit
def is_finite(params: Any) -> jax.Array:
    """Whether all numbers of a pytree of arrays are finite, bool []."""
    return jnp.stack([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(params)]).all()


def make_trainer(params: Params, drafter: str, options: LearnerOptions) -> Trainer:
    """Make the trainer of a drafter of `params`, on copies of its weights."""
    variables, spec = params.drafter(drafter), params.spec
    learner = make_learner(spec.drafter(drafter), spec.target, options)
    train = learner.begin(variables["params"])
    rest = {name: value for name, value in variables.items() if name != "params"}
    return Trainer(learner, train, copy_weights(train.theta), rest, dict(params.target))
