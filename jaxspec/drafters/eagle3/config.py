"""Static description of an EAGLE-3 drafter."""

from __future__ import annotations

import dataclasses

from jaxspec.core.config import FeatureDrafterConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class EagleConfig(FeatureDrafterConfig):
    """An EAGLE-3 drafter (Li et al. 2025): one decoder layer.

    Its attention reads [token embedding | feature], 2E wide.

    Attributes:
      depth: longest drafted path unless a call says otherwise; each level costs one forward.
      norm_before_residual: whether the residual connection carries the feature after its norm (a
        choice of the speculators schema).
      own_embeddings: rows of the drafter's own embedding table, which a drafter needs that is
        narrower or wider than its target; 0: it reads the target's.
    """

    depth: int = 8
    norm_before_residual: bool = False
    own_embeddings: int = 0
