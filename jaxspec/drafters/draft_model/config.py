"""Static description of a small language model that drafts."""

from __future__ import annotations

import dataclasses

from jaxspec.core.config import TargetConfig


@dataclasses.dataclass(frozen=True)
class DraftModelConfig:
    """A smaller model of the target's family as drafter (Leviathan et al. 2023; Chen et al. 2023),
    with its own cache.

    Attributes:
      model: architecture of the small model; its tokens are the target's.
      target_vocab_size: rows of the target's embedding table; 0: as many as the model's. Tables of a
        family are padded differently.
      depth: longest drafted path unless a call says otherwise; each level costs one forward.
      score_temperature: see `jaxspec.core.config.DrafterConfig`.
    """

    model: TargetConfig
    depth: int = 8
    score_temperature: tuple[float, float] = (1.0, 1.0)
    feature_layers: tuple[int, ...] = ()
    target_vocab_size: int = 0

    @property
    def vocab_size(self) -> int:
        """Return the vocabulary size of the target."""
        return self.target_vocab_size or self.model.vocab_size

    @property
    def draft_vocab_size(self) -> int | None:
        """Return the number of tokens that can be drafted; None for the target's vocabulary."""
        return self.model.vocab_size if self.model.vocab_size < self.vocab_size else None
