"""What rounds and updates cost, in seconds: by the clock of this device, or by a model of another."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol

import numpy as np

from jaxspec.adapt.actions import ACTIONS, HEAD
from jaxspec.adapt.learning.segments import Segments
from jaxspec.adapt.updates import Trainer
from jaxspec.adapt.work import POSITIONS, Steps, Work

# Forward passes that a gradient step takes as long as: one, and a backward pass of about two.
_PASSES = 3


class Prices(Protocol):
    """Seconds of another device than this one, such as `benchmarks.adapt.modelled.Model`."""

    @property
    def round_seconds(self) -> float:
        """Seconds of a round."""
        ...

    @property
    def load_seconds(self) -> float:
        """Seconds in which an older version comes from the host."""
        ...

    def step_seconds(
        self, action: str, positions: int, redrafts: bool, anchored: bool = True
    ) -> float:
        """Seconds of a gradient step on so many positions.

        Args:
          redrafts: whether it runs the drafter's trunk; else it reads outputs that are kept.
          anchored: whether the drafter before deployment runs too.
        """
        ...

    def pass_seconds(self, positions: int) -> float:
        """Seconds of a forward pass of the drafter on so many positions."""
        ...

    def read_seconds(self, positions: int) -> float:
        """Seconds of a projection of kept outputs at so many positions."""
        ...


class Meter:
    """Seconds of adaptation since the latest query, as a decider counts them.

    Args:
      prices: of another device; None: what was measured counts.
      free: whether adaptation takes nothing from decoding, since it runs elsewhere.
    """

    def __init__(self, prices: Prices | None, free: bool = False):
        self.prices, self.free, self._counted = prices, free, 0.0

    def count_query(self, rounds: int, decoding: float, evidence: float, work: Work) -> float:
        """Return the seconds of a query and of what was done after the one before it.

        Args:
          rounds: of decoding. decoding, evidence: measured seconds of both.
          work: that told the drafter's error.
        """
        here = decoding if self.free else decoding + evidence
        if self.prices is not None:
            here = rounds * self.prices.round_seconds + price_work(self.prices, work)
        counted, self._counted = self._counted, 0.0
        return counted + here

    def count_comparison(self, work: Work, loads: int) -> None:
        """Count a comparison of versions, `loads` of which came from the host."""
        if self.prices is not None:
            self._counted += price_work(self.prices, work) + loads * self.prices.load_seconds

    def count_update(self, measured: float, steps: Steps, work: Work) -> float:
        """Count an update of gradient steps and of tests; return its seconds."""
        if self.prices is None:
            return 0.0 if self.free else measured
        each = self.prices.step_seconds(steps.action, POSITIONS, steps.redrafts, steps.anchored)
        seconds = steps.count * each + price_work(self.prices, work)
        self._counted += seconds
        return seconds

    def count_all(self, measured: float) -> None:
        """Count the measured seconds of all that followed a query, comparison and update included."""
        if self.prices is None:
            self._counted = 0.0 if self.free else measured


def price_work(prices: Prices, work: Work) -> float:
    """Return the seconds of work without gradients."""
    seconds = work.passes * prices.pass_seconds(POSITIONS)
    return seconds + work.reads * prices.read_seconds(POSITIONS)


def price_updates(
    trainer: Trainer, ring: Segments, tested: int, steps: int, prices: Prices | None
) -> Mapping[str, float]:
    """Tell what an update of each action takes before there was one, in seconds.

    Without `prices`, a pass over the positions of one batch of segments that are trained on is
    timed. One over those that are tested is taken to cost as much per round. An update tests
    `tested` segments twice and takes `steps` gradient steps. Where outputs are kept, each test reads
    them, and a trunk runs once for every set of weights that it has.
    """
    batches, kept = math.ceil(tested / trainer.learner.options.batch), not trainer.redrafts(HEAD)
    found = {}
    if prices is not None:
        for action in ACTIONS:
            redrafts = trainer.redrafts(action)
            passes = batches * (1 + redrafts)
            tests = price_work(prices, Work(passes, 2 * batches * kept))
            found[action] = steps * prices.step_seconds(action, POSITIONS, redrafts) + tests
        return found
    whole, read = trainer.time_pass(ring, ring.weight)
    tested_rounds, trained_rounds = (
        int((np.asarray(wanted)[: trainer.learner.options.batch] > 0).any(-1).sum())
        for wanted in (ring.held, ring.weight)
    )
    share = tested_rounds / max(trained_rounds, 1)
    for action in ACTIONS:
        redrafts = trainer.redrafts(action)
        trunks = (1 + redrafts) * (whole - read if kept else whole)
        tests = batches * share * (trunks + 2 * read * kept)
        found[action] = _PASSES * steps * (whole if redrafts else read) + tests
    return found
