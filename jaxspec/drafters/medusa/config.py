"""Static description of Medusa heads."""

from __future__ import annotations

import dataclasses

from jaxspec.core.config import DrafterConfig


@dataclasses.dataclass(frozen=True)
class MedusaConfig(DrafterConfig):
    """Medusa heads (Cai et al. 2024): head i reads the target's last hidden state and proposes the
    token at depth i + 1. `feature_layers` is (number of target layers,), which means the hidden
    state after the final norm.

    Attributes:
      hidden_size: width E of the target's hidden state.
      heads: number of heads.
      layers: number of residual blocks of a head.
      own_projection: whether every head has its own output projection; otherwise all heads share
        the target's.
    """

    hidden_size: int
    heads: int
    layers: int = 1
    own_projection: bool = True

    @property
    def depth(self) -> int:
        """Return the longest path that can be drafted."""
        return self.heads
