"""What an engine tells those who train one of its drafters, and what they may do between visits.

`jaxspec.adapt.serving` trains. The engine knows nothing of how: it hands over texts that ended, and
takes new weights.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np

from jaxspec.core.params import Params
from jaxspec.round.evidence import Evidence


class ServedText(NamedTuple):
    """A text that ended, and n rounds that committed the end of it.

    Attributes:
      evidence: of one sequence, on the device; None if it was not wanted.
      prompt: its token ids.
      first: tokens of the prompt that were not run for this text, so they have no rows.
      chunk: rows of the chunks in which the others were run.
      tokens: that the rounds committed.
      counts: int [n], how many each of them committed.
      rejected: bool [n], whether its path ended in a rejection.
      drafted: bool [n], whether it verified a draft.
      seconds: of the device for all texts since the text that ended before this one.
      load: slots that decoded in its rounds, on average.
      version: of the drafter in most of its rounds.
    """

    evidence: Evidence | None
    prompt: list[int]
    first: int
    chunk: int
    tokens: list[int]
    counts: np.ndarray
    rejected: np.ndarray
    drafted: np.ndarray
    seconds: float
    load: float
    version: int


class Adapts(Protocol):
    """Trains a drafter. The engine's thread calls all methods but `counters`; none of them raises.

    Attributes:
      drafter: its name.
      rows: newest rows of a text that it learns from.
      version: of the weights that decode.
      wants: whether evidence of the next text is wanted.
    """

    drafter: str
    rows: int

    @property
    def version(self) -> int: ...

    @property
    def wants(self) -> bool: ...

    def start(self) -> None:
        """Begin to learn: the engine is warmed up."""

    def begin_visit(self) -> None:
        """Give the device to the engine, at most one pass of training from now."""

    def publish(self, params: Params) -> Params | None:
        """Write the newest version into the drafter's buffers; None if it decodes already."""

    def end_visit(self) -> None:
        """Take the device back, until the next visit begins."""

    def hear(self, text: ServedText) -> None:
        """Learn from a text, some time."""

    def wait(self) -> None:
        """Wait until all texts so far are learned from. The engine's thread must not visit."""

    def counters(self) -> dict[str, Any]:
        """Return figures as JSON-able values. Any thread may call it."""
        ...

    def close(self) -> None:
        """End, and forget all texts."""
