"""Static description of prompt lookup."""

from __future__ import annotations

import dataclasses

from jaxspec.core.config import DrafterConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class PromptLookupConfig(DrafterConfig):
    """Prompt lookup (Saxena 2023): find the latest earlier occurrence of the text's last few tokens
    and propose the tokens that followed it. It has no weights.

    Attributes:
      depth: number of tokens that are copied.
      longest: tokens of the longest n-gram that is looked up; longer ones are preferred.
      shortest: tokens of the shortest n-gram that is looked up.
    """

    depth: int = 8
    longest: int = 3
    shortest: int = 1
