"""Make an update: train on an action's buffer, test the result, publish or refuse it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.adapt.actions import HEAD
from jaxspec.adapt.deciders.base import Decider
from jaxspec.adapt.gate import Flips, count_flips
from jaxspec.adapt.learning.learner import Learner, make_learner
from jaxspec.adapt.learning.optimize import LearnerOptions, Train
from jaxspec.adapt.learning.segments import Segments
from jaxspec.adapt.learning.trunk import KeptOutputs
from jaxspec.adapt.publish import copy_weights
from jaxspec.adapt.turns import OwnDevice, Turns
from jaxspec.adapt.work import POSITIONS, Work
from jaxspec.core.params import Params
from jaxspec.core.runtime.compilations import compilations

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
      own, before: outputs of the trunk of `train` and of that of `start`, see `learning.trunk`.
        Both are the same until a trunk is trained.
      work: what was computed so far for tests, errors and outputs that are kept.
      turns: who else may use the device between two passes or gradient steps.
    """

    learner: Learner
    train: Train
    start: Any
    rest: dict[str, Any]
    target: Any
    own: KeptOutputs
    before: KeptOutputs
    work: Work = Work()
    turns: Turns = dataclasses.field(default_factory=OwnDevice)

    def redrafts(self, action: str) -> bool:
        """Whether steps of an action draft segments again, and so run the trunk."""
        return action != HEAD or self.learner.head is None

    def update(
        self, action: str, ring: Segments, chosen: np.ndarray, tested: np.ndarray, decider: Decider
    ) -> tuple[bool, Flips, int]:
        """Train on the segments `chosen` int [n], at least one, and test on those of `tested` int [m].

        Returns:
          Whether to publish it, what changed at held-out positions (nothing if the decider asks for
          no test), and the number of steps. A refused update leaves weights and moments as they
          were.
        """
        gated, own = decider.gated, self.own
        kept = jax.tree.map(jnp.copy, self.train) if gated else None
        before = self._hits(ring, tested) if gated else None
        size = self.learner.options.batch
        batches = [chosen[at : at + size] for at in range(0, len(chosen), size)]
        steps = len(batches) if decider.steps is None else decider.steps
        take = self._make_step(action, ring, chosen, decider.anchored)
        for step in range(steps):
            self.train, _ = take(batches[step % len(batches)])
            self.turns.pause(self.train)
        if not gated:
            jax.block_until_ready(self.train)
            return True, NO_FLIPS, steps
        held = np.asarray(ring.held)[tested]
        flips = count_flips(before, self._hits(ring, tested), held)
        if flips.z <= 0:
            self.train, self.own = kept, own
        return flips.z > 0, flips, steps

    def _make_step(
        self, action: str, ring: Segments, chosen: np.ndarray, anchored: bool
    ) -> Callable[[np.ndarray], tuple[Train, Any]]:
        """Return what takes a gradient step on a batch of the segments `chosen`."""
        learner, given = self.learner, (self.start, self.rest)
        if self.redrafts(action):
            self.own = KeptOutputs()  # the trunk moves
            given = *given, self.target, ring
            return lambda batch: learner.step(self.train, action, *given, batch, anchored)
        own = self._keep(self.own, self.train.theta, ring, chosen)
        before = self._keep(self.before, self.start, ring, chosen) if anchored else own
        given = *given, ring, (own, before)
        return lambda batch: learner.head.step(self.train, *given, batch, anchored)

    def _keep(
        self, outputs: KeptOutputs, theta: Any, ring: Segments, chosen: np.ndarray
    ) -> jax.Array:
        """Draft those of the segments `chosen` whose outputs are not kept; return all, [N, W, E]."""
        missing, size = outputs.find_missing(ring, chosen), self.learner.options.batch
        for at in range(0, len(missing), size):
            given = theta, self.rest, self.target, ring, outputs.rows, missing[at : at + size]
            outputs.rows = self.learner.head.draft(*given)
            self.work += Work(passes=1)
            self.turns.pause(outputs.rows)
        outputs.remember(ring, missing)
        return outputs.rows

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
        judged = self._read(ring, chosen, ring.reject)[1]
        return float(((1 - judged) * np.asarray(ring.reject)[chosen]).sum())

    def time_pass(self, ring: Segments, wanted: jax.Array) -> tuple[float, float]:
        """Time a pass over one batch of segments, in seconds; one that compiles is run again.

        Args:
          wanted: [N, Q, D] of the ring, positions that it reads: `held`, `reject` or `weight`.

        Returns:
          Seconds of the pass, and those of it that it takes if outputs are kept already.
        """
        some = np.arange(self.learner.options.batch) % ring.token.shape[0]
        own, keeps = self.own, self.learner.head is not None
        began = kept = 0.0
        compiled = -1
        while compiled != compilations():
            compiled, self.own = compilations(), KeptOutputs()
            began = self.turns.clock()
            self._read(ring, some, wanted)
            kept = self.turns.clock()
            if keeps:
                self._read(ring, some, wanted)
        ended, self.own = self.turns.clock(), own
        return kept - began, (ended if keeps else kept) - (kept if keeps else began)

    def rehearse_test(self, ring: Segments) -> None:
        """Run passes as tests and comparisons do, which compiles them."""
        twin = dataclasses.replace(self, turns=OwnDevice())
        twin.time_pass(ring, ring.held)
        if self.learner.head is not None:
            twin._judge(self.train.theta, ring, np.zeros(1, np.int64), ring.held)

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
        self.own = KeptOutputs()

    def resume(self, train: Train, start: Any) -> None:
        """Go on with what another trainer carried."""
        self.train, self.start = train, start
        self.own, self.before = KeptOutputs(), KeptOutputs()

    def _hits(self, ring: Segments, chosen: np.ndarray) -> np.ndarray:
        """Return whether the drafter is right at held-out positions, bool [n, Q, D]."""
        return self._read(ring, chosen, ring.held)[0]

    def _read(
        self, ring: Segments, chosen: np.ndarray, wanted: jax.Array
    ) -> tuple[np.ndarray, np.ndarray]:
        """Judge the weights in training, from kept outputs if there may be any.

        Args:
          wanted: some of `ring.held`, `ring.reject` and `ring.weight`.
        """
        if self.learner.head is None:
            return self._judge(self.train.theta, ring, chosen, wanted)
        outputs = self._keep(self.own, self.train.theta, ring, chosen)
        self.work += Work(reads=self._count(chosen, wanted))
        given = self.train.theta, self.rest, ring, outputs
        return self._in_turns(lambda some: self.learner.head.read(*given, some, wanted), chosen)

    def _in_turns(
        self, read: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]], chosen: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Read the segments `chosen` batch by batch; others may use the device in between."""
        size, found = self.learner.options.batch, []
        for at in range(0, len(chosen), size):
            found.append(read(chosen[at : at + size]))
            self.turns.pause(found[-1])
        hits, chances = zip(*found, strict=True)
        return np.concatenate(hits), np.concatenate(chances)

    def _count(self, chosen: np.ndarray, wanted: jax.Array) -> int:
        """Count passes over segments."""
        batches = math.ceil(len(chosen) / self.learner.options.batch)
        return max(batches, math.ceil(float(np.asarray(wanted)[chosen].sum()) / POSITIONS))

    def _judge(
        self, theta: Any, ring: Segments, chosen: np.ndarray, wanted: jax.Array
    ) -> tuple[np.ndarray, np.ndarray]:
        self.work += Work(passes=self._count(chosen, wanted))
        given = theta, self.rest, self.target, ring
        return self._in_turns(lambda some: self.learner.judge(*given, some, wanted), chosen)


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
    outputs = KeptOutputs()
    given = learner, train, copy_weights(train.theta), rest, dict(params.target)
    return Trainer(*given, own=outputs, before=outputs)
