"""Static description of a DFlash2 drafter."""

from __future__ import annotations

import dataclasses

from jaxspec.drafters.dflash.config import BlockDrafterConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class DFlash2Config(BlockDrafterConfig):
    """A DFlash2 drafter: DFlash with convolutions inside the block and a selector of candidates.

    Attributes:
      conv_group_size: neighbouring channels that share the dynamic part of a convolution's kernel.
      conv_kernel_size: taps of a convolution: the row itself and the rows before it.
      selector_rank: width r of the selector's codebooks.
      selector_top_k: candidates of a slot.
      output_multiplier: factor of the target's logits, before the softcap.
      logit_softcap: bound c of the logits, c * tanh(logits / c); None for none.
      embedding_scale: factor of the embeddings of the block.
    """

    conv_group_size: int = 16
    conv_kernel_size: int = 2
    selector_rank: int = 256
    selector_top_k: int = 16
    output_multiplier: float = 1.0
    logit_softcap: float | None = None
    embedding_scale: float = 1.0

    def __post_init__(self) -> None:
        if self.hidden_size % self.conv_group_size:
            raise ValueError(
                f"conv_group_size is {self.conv_group_size}, which does not divide the hidden size "
                f"{self.hidden_size}"
            )
        if self.vocab_size < self.selector_top_k:
            raise ValueError(
                f"selector_top_k is {self.selector_top_k}, more than the {self.vocab_size} tokens"
            )
        if self.draft_vocab_size is not None:
            raise ValueError("DFlash2 has no reduced draft vocabulary: leave draft_vocab_size out")

    @property
    def groups(self) -> int:
        """Return the number of groups of channels, G."""
        return self.hidden_size // self.conv_group_size
