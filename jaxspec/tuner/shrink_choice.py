"""Decide when a batch shrinks without being asked: once its smaller programs have paid.

A smaller batch runs programs of its own, which take seconds to compile, and nobody knows how long
its texts will be. So a process adds up what finished sequences cost it, and compiles for a smaller
batch when that reaches what compiling took for the whole batch. If rounds cost as much for each
sequence, it loses for no size more than twice what the best choice in hindsight does (Karlin,
Manasse, Rudolph and Sleator 1988). Batches of a size that is compiled shrink at once.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Hashable, Iterator

from jaxspec.call.session import Session
from jaxspec.call.start import find_key
from jaxspec.core.runtime.compilations import compilations, saved_seconds


class ShrinkPrices:
    """What smaller batches would cost, and what they would have spared.

    Attributes:
      prices: what compiling took of the programs of rounds that this process has, in seconds; by
        `find_key`.
      lost: seconds that finished sequences have cost where there is no such program.
    """

    def __init__(self) -> None:
        self.prices: dict[Hashable, float] = {}
        self.lost: dict[Hashable, float] = {}

    @contextlib.contextmanager
    def timing_compilation(self, session: Session) -> Iterator[None]:
        """Note what compiling the rounds of a session takes, if the body does it, or would take.

        A program from disk costs what it cost to compile: that of a smaller batch may not be there.
        """
        before, saved, began = compilations(), saved_seconds(), time.perf_counter()
        yield
        if compilations() != before:
            took = time.perf_counter() - began
            self.prices[find_key(session)] = took + saved_seconds() - saved

    def pays(self, session: Session, batch: int, seconds: float) -> bool:
        """Decide whether a session goes on with a smaller batch.

        Args:
          session: of the present batch.
          batch: number of sequences of the smaller one.
          seconds: that passed since the last look, if the smaller batch would have done then.
            Rounds are taken to cost as much for each sequence.
        """
        key = find_key(session, batch)
        if key in self.prices:
            return True
        lost = self.lost.get(key, 0.0) + seconds * (1 - batch / len(session.lengths))
        self.lost[key] = lost
        price = self.prices.get(find_key(session))
        return price is not None and lost >= price
