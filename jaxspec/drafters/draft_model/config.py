"""Static description of a small language model that drafts."""

from __future__ import annotations

import dataclasses

from jaxspec.core.config import TargetConfig


@dataclasses.dataclass(frozen=True)
class SmallModelConfig:
    """A smaller model of the target's family as drafter (Leviathan et al. 2023; Chen et al. 2023),
    with its own cache.

    Attributes:
      model: architecture of the small model; its vocabulary is the target's.
      depth: longest drafted path unless a call says otherwise; each level costs one forward.
      score_temperature: see `jaxspec.core.config.DrafterConfig`.
    """

    model: TargetConfig
    depth: int = 8
    score_temperature: tuple[float, float] = (1.0, 1.0)
    feature_layers: tuple[int, ...] = ()
    draft_vocab_size: None = None

    @property
    def vocab_size(self) -> int:
        """Return the vocabulary size of both models."""
        return self.model.vocab_size
