"""A builder of your own: the best chain, with the next best tokens beside each of its nodes."""

import dataclasses
from typing import ClassVar

from jaxspec.builders import Builder, Growth, Proposes, static


@dataclasses.dataclass(frozen=True)
class Comb(Builder):
    name: ClassVar[str] = "comb"
    width: int = 2

    def make_growth(self, proposes: Proposes) -> Growth:
        ranks = range(min(self.width, proposes.vocab_size))
        paths = [(*[0] * depth, rank) for depth in range(proposes.depth) for rank in ranks]
        return static(paths[: proposes.budget - 1]).bind(proposes)
