"""Static description of a SpecBlock drafter."""

from __future__ import annotations

import dataclasses

from jaxspec.core.config import FeatureDrafterConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpecBlockConfig(FeatureDrafterConfig):
    """A SpecBlock drafter: every forward proposes a block of `slots` tokens after each of its start
    nodes.

    Attributes:
      slots: K, tokens of a block. blocks: M, blocks that follow each other on a path; may exceed
        those of training.
      rank_classes: classes of the rank head. rank_hidden: its inner width.
      rank_top: T, logits that its distribution features are made of (20 in training, 10 in the
        released inference code).
      prefix_broadcast: every slot reads the condition and the token; without it the slots after the
        first read their query alone (ablation).
      shift: the layer-wise shift (ablation).
    """

    slots: int = 4
    blocks: int = 2
    rank_classes: int = 4
    rank_hidden: int = 256
    rank_top: int = 10
    prefix_broadcast: bool = True
    shift: bool = True

    @property
    def depth(self) -> int:
        """Longest path that a round drafts unless a call says otherwise."""
        return self.slots * self.blocks
