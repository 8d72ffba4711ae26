"""The evidence of a session: segments on the device, and which of them wait in an action's buffer.

It holds text of users: it lives in memory alone, and is never written to a file or a log.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

import jax.numpy as jnp
import numpy as np

from jaxspec.adapt.actions import ACTIONS, BOTH
from jaxspec.adapt.learning.segments import Segments, empty_ring, write_segment


@dataclasses.dataclass
class Buffers:
    """A ring of segments, and each action's share of it.

    Attributes:
      size: segments of the ring.
      ring: the segments, on the device; None before the first.
      written: segments written since the start.
      positions: {entry of the ring: positions to train on}.
      waiting: {action: numbers of its segments, counted from the start}.
      oldest: number of the first segment that counts.
    """

    size: int
    ring: Segments | None = None
    written: int = 0
    positions: dict[int, int] = dataclasses.field(default_factory=dict)
    waiting: dict[str, list[int]] = dataclasses.field(
        default_factory=lambda: {action: [] for action in ACTIONS}
    )
    oldest: int = 0

    def add(self, segments: Iterable[Segments]) -> list[int]:
        """Write segments; return the numbers of those that the ring still holds."""
        numbers = []
        for one in segments:
            if self.ring is None:
                self.ring = empty_ring(one, self.size)
            one = one.replace(number=jnp.int32(self.written))
            self.ring = write_segment(self.ring, one, np.int32(self.written % self.size))
            self.positions[self.written % self.size] = int((np.asarray(one.weight) > 0).sum())
            numbers.append(self.written)
            self.written += 1
        self.forget(self.written - self.size)  # the ring has overwritten what was before
        return [n for n in numbers if n >= self.oldest]

    def forget(self, oldest: int) -> None:
        """Let segments before the number `oldest` count no longer."""
        self.oldest = max(self.oldest, oldest)
        for action, known in self.waiting.items():
            self.waiting[action] = [n for n in known if n >= self.oldest]

    def keep(self, action: str, numbers: Iterable[int]) -> None:
        """Let segments wait in an action's buffer, or in both."""
        for known in self.waiting:
            if action in (known, BOTH):
                self.waiting[known] = [*self.waiting[known], *numbers]

    def take(self, action: str) -> np.ndarray:
        """Empty an action's buffer; return the entries of its segments."""
        found, self.waiting[action] = self.waiting[action], []
        return np.array(found, np.int64) % self.size

    def newest(self, count: int, first: int = 0) -> np.ndarray:
        """Return the entries of the newest segments that count, at most `count` of them, from the
        number `first` on."""
        first = max(first, self.oldest, self.written - count)
        return np.arange(first, self.written) % self.size

    def count(self, numbers: Iterable[int]) -> int:
        """Count positions to train on of some segments."""
        return sum(self.positions[number % self.size] for number in numbers)

    @property
    def filled(self) -> Mapping[str, int]:
        """Positions to train on that wait in each action's buffer."""
        return {action: self.count(numbers) for action, numbers in self.waiting.items()}
