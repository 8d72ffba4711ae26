"""Static description of a SpecBlock drafter."""

from __future__ import annotations

import dataclasses

from jaxspec.core.config import FeatureDrafterConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpecBlockConfig(FeatureDrafterConfig):
    """A SpecBlock drafter: every forward proposes a block of `slots` tokens after each of its start
    nodes.

    Attributes:
      slots: K, tokens of a block.
      blocks: M, consecutive blocks on a path; may exceed the number in training.
      rank_classes: number of classes of the rank head.
      rank_hidden: inner width of the rank head.
      rank_top: T, number of largest logits that give the rank head's distribution features (20 in
        training, 10 in the released inference code).
      prefix_broadcast: whether every slot reads the condition and the token; otherwise the slots
        after the first read only their query (ablation).
      shift: whether layers use the layer-wise shift (ablation).
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
        """Return the longest path that a round drafts unless a call says otherwise."""
        return self.slots * self.blocks
