"""What rounds and updates cost, in seconds: by the clock of this device, or by a model of another."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol

import numpy as np

from jaxspec.adapt.actions import ACTIONS
from jaxspec.adapt.learning.segments import Segments
from jaxspec.adapt.updates import POSITIONS, Trainer

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

    def step_seconds(self, action: str, positions: int) -> float:
        """Seconds of a gradient step on so many positions."""
        ...

    def pass_seconds(self, positions: int) -> float:
        """Seconds of a forward pass of the drafter on so many positions."""
        ...


class Meter:
    """Seconds of adaptation since the latest query, as a decider counts them.

    Args:
      prices: of another device; None: what was measured counts.
      free: whether adaptation takes nothing from decoding, since it runs elsewhere.
    """

    def __init__(self, prices: Prices | None, free: bool = False):
        self.prices, self.free, self._counted = prices, free, 0.0

    def count_query(self, rounds: int, decoding: float, evidence: float, passes: int) -> float:
        """Return the seconds of a query and of what was done after the one before it.

        Args:
          rounds: of decoding. decoding, evidence: measured seconds of both.
          passes: forward passes of the drafter that told its error.
        """
        here = decoding if self.free else decoding + evidence
        if self.prices is not None:
            here = rounds * self.prices.round_seconds + passes * self.prices.pass_seconds(POSITIONS)
        counted, self._counted = self._counted, 0.0
        return counted + here

    def count_comparison(self, passes: int, loads: int) -> None:
        """Count a comparison of versions, `loads` of which came from the host."""
        if self.prices is not None:
            self._counted += passes * self.prices.pass_seconds(POSITIONS)
            self._counted += loads * self.prices.load_seconds

    def count_update(self, action: str, measured: float, steps: int, passes: int) -> float:
        """Count an update of `steps` gradient steps and `passes` tests; return its seconds."""
        if self.prices is None:
            return 0.0 if self.free else measured
        seconds = steps * self.prices.step_seconds(action, POSITIONS)
        seconds += passes * self.prices.pass_seconds(POSITIONS)
        self._counted += seconds
        return seconds

    def count_all(self, measured: float) -> None:
        """Count the measured seconds of all that followed a query, comparison and update included."""
        if self.prices is None:
            self._counted = 0.0 if self.free else measured


def price_updates(
    trainer: Trainer, ring: Segments, tested: int, steps: int, prices: Prices | None
) -> Mapping[str, float]:
    """Tell what an update of each action takes before there was one, in seconds.

    Without `prices`, a pass over the positions of one batch of segments that are trained on is
    timed. One over those that are tested is taken to cost as much per round. An update tests
    `tested` segments twice and takes `steps` gradient steps.
    """
    batches = 2 * math.ceil(tested / trainer.learner.options.batch)
    if prices is not None:
        tests = batches * prices.pass_seconds(POSITIONS)
        return {
            action: steps * prices.step_seconds(action, POSITIONS) + tests for action in ACTIONS
        }
    train = trainer.time_pass(ring, ring.weight)
    tested_rounds, trained_rounds = (
        int((np.asarray(wanted)[: trainer.learner.options.batch] > 0).any(-1).sum())
        for wanted in (ring.held, ring.weight)
    )
    test = train * tested_rounds / max(trained_rounds, 1)
    return dict.fromkeys(ACTIONS, _PASSES * steps * train + batches * test)
