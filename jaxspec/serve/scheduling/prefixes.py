"""What the slots' caches hold, and how much of it a new prompt can use again.

A slot keeps its rows when its request ends, so the next turn of a chat finds the ones before it,
and samples of one prompt find it in each other's slots. Whole chunks are reused, as prefill writes
them.
"""

from __future__ import annotations

import os.path
from collections.abc import Sequence

from jaxspec.round.sizes import prompt_chunk


class HeldPrefixes:
    """The tokens whose rows each slot's caches hold, and the order in which slots became free."""

    def __init__(self, slots: int, chunk: int | None = None):
        self._held: list[tuple[int, ...]] = [()] * slots
        self._readers = [0] * slots
        self._freed = [0] * slots
        self._chunk, self._count = chunk or prompt_chunk(), 0

    def hold(self, slot: int, tokens: Sequence[int], reader: int) -> None:
        """Note that a slot's caches hold the rows of `tokens`.

        Args:
          reader: number of the drafter that has read them too, from 1; 0: none.
        """
        self._held[slot], self._readers[slot] = tuple(tokens), reader

    def forget_reader(self, reader: int) -> None:
        """Note that what a drafter has read is out of date."""
        self._readers = [0 if one == reader else one for one in self._readers]

    def free(self, slot: int) -> None:
        """Note that a slot is free from now on."""
        self._count += 1
        self._freed[slot] = self._count

    def choose_slot(self, free: Sequence[int], prompt: Sequence[int], reader: int) -> int:
        """Choose the free slot that holds most of a prompt; among equals the one free for longest."""
        return min(free, key=lambda slot: (-self.count(slot, prompt, reader), self._freed[slot]))

    def find(self, prompt: Sequence[int], reader: int) -> tuple[int, int]:
        """Return the slot that holds most of a prompt, free or not, and how many tokens of it."""
        best = max(range(len(self._held)), key=lambda slot: self.count(slot, prompt, reader))
        return best, self.count(best, prompt, reader)

    def count(self, slot: int, prompt: Sequence[int], reader: int) -> int:
        """Count the tokens of a prompt whose rows a slot holds and can be used again.

        These are whole chunks. The token after them must be the same too, because drafters read
        pairs, and some token must be left to feed.

        Args:
          reader: number of the drafter that needs its rows too, from 1; 0: none does.
        """
        if reader not in (0, self._readers[slot]):
            return 0
        same = len(os.path.commonprefix([self._held[slot], tuple(prompt[:-1])]))
        return max(0, same - 1) // self._chunk * self._chunk
