"""Count what adaptation takes: by the clock of this device, or by the prices of another."""

from __future__ import annotations

from jaxspec.adapt.prices import Prices
from jaxspec.adapt.updates import POSITIONS


class Meter:
    """Seconds of adaptation since the latest query, as a decider counts them.

    Args:
      prices: of another device; None: what was measured counts.
    """

    def __init__(self, prices: Prices | None):
        self.prices, self._counted = prices, 0.0

    def count_query(self, rounds: int, measured: float, passes: int) -> float:
        """Return the seconds of a query and of what was done after the one before it.

        Args:
          rounds: of decoding. measured: seconds of decoding and of gathering evidence.
          passes: forward passes of the drafter that told its error.
        """
        here = measured
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
            return measured
        seconds = steps * self.prices.step_seconds(action, POSITIONS)
        seconds += passes * self.prices.pass_seconds(POSITIONS)
        self._counted += seconds
        return seconds

    def count_all(self, measured: float) -> None:
        """Count the measured seconds of all that followed a query, comparison and update included."""
        if self.prices is None:
            self._counted = measured
