"""Static description of a DSpark drafter."""

from __future__ import annotations

import dataclasses

from jaxspec.core.runtime.near_miss import choose_one
from jaxspec.drafters.dflash.config import BlockDrafterConfig

HEADS = ("vanilla", "gated", "rnn")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DSparkConfig(BlockDrafterConfig):
    """A DSpark drafter: DFlash's backbone, a Markov head over the previous token, and a confidence
    head.

    Attributes:
      markov_rank: width r of the Markov head; 0 for none, which is DeepSpec's own DFlash.
      markov_head: `vanilla`, `gated` or `rnn`, see `MarkovHead`.
      confidence: whether there is a confidence head.
      confidence_with_markov: whether it reads the previous token's row of the Markov head too.
      sample_from_anchor: whether the anchor's slot proposes the first token, so that a block of
        `block_size` slots drafts as many tokens. False for the slots of DFlash and JetSpec, where
        the anchor proposes nothing.
      confidence_temperatures: divisors of the confidence head's logits, one per position of a
        draft, fitted to measured acceptance (`python -m benchmarks confidence`); () leaves them as they
        are.
    """

    markov_rank: int = 256
    markov_head: str = "vanilla"
    confidence: bool = True
    confidence_with_markov: bool = True
    sample_from_anchor: bool = True
    confidence_temperatures: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.depth < 1:
            raise ValueError(f"block_size is {self.block_size}, which drafts no token: give more")
        if self.markov_head not in HEADS:
            raise ValueError(
                f"unknown Markov head {self.markov_head!r}: {choose_one(self.markov_head, HEADS)}"
            )
        if self.markov_rank < 0:
            raise ValueError(f"markov_rank is {self.markov_rank}: give 0 (no head) or more")
        if any(not temperature > 0 for temperature in self.confidence_temperatures):
            raise ValueError(
                f"confidence_temperatures are {list(self.confidence_temperatures)}: "
                "give numbers above 0"
            )
        if self.confidence and self.confidence_with_markov and not self.markov_rank:
            raise ValueError(
                "the confidence head cannot read a Markov head of rank 0: "
                "set confidence_with_markov to false"
            )

    @property
    def first_slot(self) -> int:
        """Return the first slot of a block that proposes a token."""
        return 0 if self.sample_from_anchor else 1

    @property
    def depth(self) -> int:
        """Return the longest path that can be drafted from one block."""
        return self.block_size - self.first_slot
