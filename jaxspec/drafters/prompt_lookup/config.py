"""Static description of prompt lookup."""

from __future__ import annotations

import dataclasses

from jaxspec.core.config import DrafterConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class PromptLookupConfig(DrafterConfig):
    """Prompt lookup (Saxena 2023): proposes what followed the text's last few tokens when they last
    occurred; no weights.

    Attributes:
      depth: tokens that are copied.
      longest, shortest: tokens of the n-gram that is looked up; longer ones are tried first.
    """

    depth: int = 8
    longest: int = 3
    shortest: int = 1
