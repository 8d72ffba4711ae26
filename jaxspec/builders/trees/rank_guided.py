"""SpecBlock's tree: greedy chains, with siblings where the rank head expects a miss.

A block adds a chain of K tokens under its node. The rank head gives each slot a class, which sets
how many tokens the slot proposes in all; a high probability of the best one lowers that number.
Slot 0 of the root's block has a width of its own. The next blocks start from the nodes of slots
that branch and from the ends of chains. This follows the authors' released code. Their paper's
algorithm 2 knows neither the probabilities nor the width of slot 0, and starts everywhere; it is
`rank_guided/width=null/classes=default/starts=all`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

from jaxspec.builders.growth import Growth, Proposes
from jaxspec.builders.protocol import Builder, Unsuitable, check_count
from jaxspec.builders.trees.rank_blocks import FIRST_SLOT, OTHER_SLOTS, BlockSizes, grow_blocks
from jaxspec.core.runtime.near_miss import choose_one

ALL = "all"
# Tokens per rank class, then the modes of `FIRST_SLOT` and `OTHER_SLOTS`. If the last class has
# width 0, the slots after it do not branch either.
WIDTHS = {"default": ((2, 4, 10, 0), 0, 0), "slim": ((2, 4, 6, 4), 1, 1)}


@dataclasses.dataclass(frozen=True)
class RankGuided(Builder):
    """See `rank_guided`."""

    name: ClassVar[str] = "rank_guided"
    width: int | None = 10
    classes: str | tuple[int, ...] = "slim"
    adaptive_slot0: int | None = None
    adaptive_all: int | None = None
    starts: int | str | None = None
    keep_duplicates: bool = False

    def __post_init__(self) -> None:
        check_count("width", self.width)
        if isinstance(self.starts, str):
            if self.starts != ALL:
                raise ValueError(f"starts is {self.starts!r}: give a number, or {ALL!r}")
        else:
            check_count("starts", self.starts)
        if isinstance(self.classes, str):
            if self.classes not in WIDTHS:
                raise ValueError(
                    f"unknown classes {self.classes!r}: {choose_one(self.classes, WIDTHS)} "
                    "or give a number of tokens per rank class"
                )
        elif not self.classes or any(not _is_count(n) for n in self.classes):
            raise ValueError(
                f"classes are {self.classes!r}: "
                "give a number of tokens, 0 or more, for each rank class"
            )
        _, slot0, others = self.table
        if slot0 not in range(len(FIRST_SLOT)) or others not in range(len(OTHER_SLOTS)):
            raise ValueError(
                f"adaptive_slot0 is {slot0} and adaptive_all {others}: give 0 to 4 and 0 to 2"
            )

    @property
    def table(self) -> tuple[tuple[int, ...], int, int]:
        """Widths by rank class, then the modes of `FIRST_SLOT` and `OTHER_SLOTS`."""
        named = WIDTHS[self.classes] if isinstance(self.classes, str) else (self.classes, 1, 1)
        modes = (self.adaptive_slot0, self.adaptive_all)
        return named[0], *(
            own if given is None else given for given, own in zip(modes, named[1:], strict=True)
        )

    @property
    def varies(self) -> bool:
        return self.classes != "slim"

    def check(self, proposes: Proposes) -> None:
        if not (proposes.steps and proposes.rank_classes):
            raise Unsuitable("builder 'rank_guided' needs a drafter with a rank head (SpecBlock)")
        count = len(self.table[0])
        if count != proposes.rank_classes:
            raise ValueError(
                f"classes {self.classes!r} are {count} widths, the drafter has "
                f"{proposes.rank_classes} rank classes: give a tuple of {proposes.rank_classes}"
            )

    def make_growth(self, proposes: Proposes) -> Growth:
        slots, vocab, budget = proposes.slots, proposes.vocab_size, proposes.budget
        table, slot0, others = self.table
        table = tuple(min(n, vocab) for n in table)
        width = None if self.width is None else min(self.width, vocab)
        later = max(*table, 1)
        widest = min(max(later, 3 if others == 2 else 0), vocab)
        bound = slots + (width or widest) - 1 + (slots - 1) * (widest - 1)
        starts = bound if self.starts == ALL else self.starts or max(budget // 4, 4)
        sizes = BlockSizes(
            slots=slots,
            starts=min(starts, bound),
            first=max(width or 0, widest),
            later=later,
            width=width,
            widths=table,
            slot0=slot0,
            others=others,
            drafted=budget - 1,
            merge=not self.keep_duplicates,
        )
        longest = max(min(proposes.depth, budget - 1), 1)
        return grow_blocks(sizes, -(-proposes.depth // slots), longest)


def rank_guided(
    width: int | None = 10,
    classes: str | Sequence[int] = "slim",
    adaptive_slot0: int | None = None,
    adaptive_all: int | None = None,
    starts: int | str | None = None,
    keep_duplicates: bool = False,
) -> RankGuided:
    """Make rank-guided trees (Shi et al., SpecBlock), for drafters that give rank classes.

    The best of all proposed nodes fill the budget.

    Args:
      width: tokens of the root's first slot, whatever its class, and maximum number of starts of
        each block after the second. None lets the class decide there too (algorithm 2).
      classes: tokens of a slot by its rank class, or the name of one of the authors' two maps in
        `WIDTHS`. Equal widths read no class. The tree is the paper's uniform control if `width` is
        None and both modes below are 0; otherwise it still branches by probability.
      adaptive_slot0: 0 to 4, how the probability of the best token bounds the width of the root's
        first slot; 0 for not at all. None takes the map's own mode, or 1 with your own widths. Not
        read if `width` is None.
      adaptive_all: 0 to 2, the same for other slots. In mode 2 the bound replaces the width of the
        root's slots, as in the authors' numpy code; everywhere else it only lowers the width.
      starts: maximum number of nodes that the second block starts from, the most probable ones;
        each costs K rows of a drafter's forward. None is a quarter of the budget, at least 4, which
        on two golden texts cost at most one round in 22. "all" takes all, as the authors do: up to
        28 with `slim`, 40 with `default`, and as many of each further block.
      keep_duplicates: whether to keep equal siblings, which arise when a block proposes a token
        that an earlier one proposed at the same place. True keeps both, as the authors' code does.
        False merges them, and the children of the second go below the first.

    Raises:
      ValueError: an argument is out of range.
    """
    table = classes if isinstance(classes, str) else tuple(classes)
    return RankGuided(width, table, adaptive_slot0, adaptive_all, starts, keep_duplicates)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
