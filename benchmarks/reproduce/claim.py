"""One claim of a paper: what it says, what is measured for it, and what decides."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

# The outputs of measurements, {measurement: {stem of a file: its JSON, or JSON Lines as a list}}.
Reports = Mapping[str, Mapping[str, Any]]

CONFIRMED, REFUTED, MIXED = "confirmed", "refuted", "mixed"
UNDECIDED = "not decidable here"
VERDICTS = (CONFIRMED, REFUTED, MIXED, UNDECIDED)
# What a result says of an entry that has no verdict.
NOT_RUN = "not run"


class Finding(NamedTuple):
    """What a measurement says of a claim.

    Attributes:
      verdict: one of `VERDICTS`.
      ours: our figures, in words.
      value: the figure that decided, None if there are several.
      interval: its 95 % interval, None if there is none.
    """

    verdict: str
    ours: str
    value: float | None = None
    interval: tuple[float, float] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Claim:
    """A directional claim.

    Attributes:
      id: `<paper>/<place>/<what>`; a request names it, or any beginning of it that ends at a slash.
      says: the claim in one sentence.
      paper: the paper's own figures.
      needs: names of the measurements that decide it, see `benchmarks.reproduce.measurements`.
      decide: their outputs -> finding; None for a claim that nothing here can try.
      drafters: that the model must have.
      scale: whether the scale can explain a refutation, in one sentence.
      waits: why it is not run, for a claim without `decide`.
    """

    id: str
    says: str
    paper: str
    needs: tuple[str, ...] = ()
    decide: Callable[[Reports], Finding] | None = None
    drafters: tuple[str, ...] = ()
    scale: str
    waits: str = ""

    def __post_init__(self) -> None:
        if (self.decide is None) != bool(self.waits) or bool(self.decide) != bool(self.needs):
            raise ValueError(f"{self.id}: give a rule and its measurements, or why there is none")

    @property
    def place(self) -> str:
        """The place in the paper, as in `table 8`."""
        return self.id.split("/")[1].replace("-", " ")
