"""Static description of a DFlash drafter or a JetSpec head."""

from __future__ import annotations

import dataclasses

from jaxspec.core.config import DrafterConfig, TransformerConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockDrafterConfig(TransformerConfig, DrafterConfig):
    """A DFlash drafter, or with `causal=True` a JetSpec causal parallel head.

    Attributes:
      block_size: slots of a block, the anchor included: `block_size - 1` tokens are drafted.
      mask_token_id: token whose row of the target's embedding table fills the slots after the
        anchor.
      causal: whether slot i attends to block slots 0..i instead of the whole block.
      sliding_window: (window, one bool per layer), or None when every layer sees the whole context.
      target_hidden_size: width of a target feature.
    """

    block_size: int = 16
    mask_token_id: int = 0
    causal: bool = False
    sliding_window: tuple[int, tuple[bool, ...]] | None = None
    target_hidden_size: int = 0

    @property
    def depth(self) -> int:
        """Return the longest path that can be drafted from one block."""
        return self.block_size - 1
