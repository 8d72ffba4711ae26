"""Static description of Medusa heads."""

from __future__ import annotations

import dataclasses

from jaxspec.core.config import DrafterConfig


@dataclasses.dataclass(frozen=True)
class MedusaConfig(DrafterConfig):
    """Medusa heads (Cai et al. 2024): head i reads the target's last hidden state and proposes the
    token at depth i + 1. `feature_layers` is (number of target layers,): the hidden state after
    the final norm.

    Attributes:
      hidden_size: width E of the target's hidden state.
      heads: number of heads.
      layers: residual blocks of a head.
      own_projection: every head has an output projection of its own; otherwise they share the
        target's.
    """

    hidden_size: int
    heads: int
    layers: int = 1
    own_projection: bool = True

    @property
    def depth(self) -> int:
        """Longest path that can be drafted."""
        return self.heads
