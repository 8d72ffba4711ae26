"""The parts of updates, each as a function of a batch, and the operations of gradient steps."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.adapt.products import count_products
from jaxspec.adapt.actions import FULL, HEAD
from jaxspec.adapt.learning.segments import Segments, take_segments
from jaxspec.adapt.learning.trunk import list_sizes
from jaxspec.adapt.updates import Trainer
from pallas_kernels import registry

# Parts besides a step of each action: a head-only step that drafts again, a pass of the trunk that
# keeps its outputs, and a test. Where no outputs are kept, there are neither of the first two.
AGAIN, KEEP, TEST = "again", "keep", "test"


def make_parts(
    trainer: Trainer, ring: Segments, chosen: np.ndarray
) -> dict[str, Callable[[np.ndarray], None]]:
    """Return what runs each part on a batch, and waits for it.

    Args:
      chosen: int [n], entries of all batches, whose outputs are kept beforehand.
    """
    learner, given = trainer.learner, (trainer.rest, trainer.target, ring)

    def redraft(action: str) -> Callable[[np.ndarray], None]:
        def run(batch: np.ndarray) -> None:
            trainer.train, _ = learner.step(trainer.train, action, trainer.start, *given, batch)
            jax.block_until_ready(trainer.train)

        return run

    def test(batch: np.ndarray) -> None:
        learner.judge(trainer.train.theta, *given, batch, ring.held)

    if learner.head is None:
        return {HEAD: redraft(HEAD), FULL: redraft(FULL), TEST: test}
    head, outputs = learner.head, None
    for at in range(0, len(chosen), learner.options.batch):
        some = chosen[at : at + learner.options.batch]
        outputs = head.draft(trainer.train.theta, *given, outputs, some)
    own = outputs

    def step(batch: np.ndarray) -> None:
        pair = trainer.rest, ring, (own, own)
        trainer.train, _ = head.step(trainer.train, trainer.start, *pair, batch)
        jax.block_until_ready(trainer.train)

    def keep(batch: np.ndarray) -> None:
        jax.block_until_ready(head.draft(trainer.train.theta, *given, None, batch))

    def read(batch: np.ndarray) -> None:
        head.read(trainer.train.theta, trainer.rest, ring, own, batch, ring.held)

    return {HEAD: step, AGAIN: redraft(HEAD), FULL: redraft(FULL), KEEP: keep, TEST: read}


def count_steps(trainer: Trainer, ring: Segments, batch: np.ndarray) -> dict[str, float]:
    """Count operations of matrix products of gradient steps on a batch, see `count_products`.

    Rounds that nobody trains on are left out, as they are when steps run.
    """
    learner, train = trainer.learner, trainer.train
    segments = take_segments(ring, *learner.options.pad(batch))
    weight = np.asarray(segments.weight) > 0
    rounds = int(np.flatnonzero(weight.any((0, 2))).max(initial=0)) + 1
    short = ("begin", "count", "reject", "weight", "held")
    segments = segments.replace(**{name: getattr(segments, name)[:, :rounds] for name in short})
    given = trainer.start, trainer.rest

    def again(action: str) -> float:
        end = trainer.target, segments, True
        with registry.using("reference"):
            return count_products(lambda: learner.find_slopes(train, action, *given, *end))

    if learner.head is None:
        return {HEAD: again(HEAD), FULL: again(FULL)}
    drafted = train.theta, trainer.rest, trainer.target, ring, None, batch
    outputs = jax.eval_shape(lambda: learner.head.draft(*drafted))
    own = jnp.zeros((len(segments.begin), *outputs.shape[1:]), outputs.dtype)
    count = next(size for size in list_sizes(own.shape[0] * own.shape[1]) if size >= weight.sum())
    kept = count_products(
        lambda: learner.head.find_slopes(train, *given, segments, (own, own), True, count)
    )
    return {HEAD: kept, AGAIN: again(HEAD), FULL: again(FULL)}
