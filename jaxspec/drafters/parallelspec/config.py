"""Static description of a ParallelSpec drafter."""

from __future__ import annotations

import dataclasses

from jaxspec.core.config import FeatureDrafterConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class ParallelSpecConfig(FeatureDrafterConfig):
    """A ParallelSpec drafter (Xiao et al. 2024): an EAGLE-like layer that fills learned mask tokens
    in one forward.

    Attributes:
      slots: tokens of a draft: one from the last pair and one per mask token.
    """

    slots: int = 4

    @property
    def depth(self) -> int:
        """Return the longest path that can be drafted."""
        return self.slots
