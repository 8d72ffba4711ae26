"""Static description of a Falcon drafter."""

from __future__ import annotations

import dataclasses

from jaxspec.core.config import FeatureDrafterConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class FalconConfig(FeatureDrafterConfig):
    """A Falcon drafter (Gao et al. 2024): an LSTM and a decoder layer with a relaxed causal mask,
    which draft `slots` tokens per forward.

    Attributes:
      slots: K, tokens per forward.
      blocks: consecutive forwards on a path unless a call says otherwise.
      lstm_size: width of the LSTM.
      lstm_layers: number of layers of the LSTM.
    """

    slots: int = 2
    blocks: int = 3
    lstm_size: int = 0
    lstm_layers: int = 2

    @property
    def depth(self) -> int:
        """Return the longest path that a round drafts unless a call says otherwise."""
        return self.slots * self.blocks
