"""Options of a session."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from jaxspec.adapt.actions import ACTIONS
from jaxspec.adapt.deciders.base import ROOM
from jaxspec.adapt.learning.cut import SegmentShape
from jaxspec.adapt.learning.optimize import LearnerOptions


@dataclasses.dataclass(frozen=True)
class AdaptOptions:
    """Sizes and rates of adaptation.

    Attributes:
      shape: sizes of segments, and what is held out.
      learner: rates of updates.
      room: {action: positions to train on that fill its buffer}.
      tested: newest segments whose held-out positions a test reads, besides those of the update.
        They are of older text as well, so an update that forgets it loses.
      segments: segments that are kept on the device, the newest ones.
      rows: rows per sequence that a decode call gathers, see `jaxspec.round.evidence`.
      versions: published versions that are kept for a rollback, besides the first.

    Raises:
      ValueError: a size is below 1.
    """

    shape: SegmentShape = SegmentShape()
    learner: LearnerOptions = LearnerOptions()
    room: Mapping[str, int] = dataclasses.field(default_factory=lambda: dict(ROOM))
    tested: int = 32
    segments: int = 64
    rows: int = 256
    versions: int = 32

    def __post_init__(self):
        sizes = {name: getattr(self, name) for name in ("tested", "segments", "rows", "versions")}
        sizes |= {f"room of {action}": self.room[action] for action in ACTIONS}
        for name, size in sizes.items():
            if size < 1:
                raise ValueError(f"{name} is {size}: give at least 1")
