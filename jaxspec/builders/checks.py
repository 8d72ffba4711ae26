"""Checks that builders share, of a drafter's proposals and of the builder's own options."""

from __future__ import annotations

from typing import Any

from jaxspec.builders.growth import Proposes
from jaxspec.builders.protocol import Builder, Unsuitable


def check_one_proposal(builder: Builder, proposes: Proposes) -> None:
    """Raise `Unsuitable` for drafters that propose a single token at a time.

    `builder` needs the candidates of every depth before it chooses.
    """
    check_choices(builder, proposes)
    if proposes.steps and proposes.slots == 1:
        raise Unsuitable(
            f"builder {builder.name!r} needs a drafter that proposes several tokens at once"
        )


def check_choices(builder: Builder, proposes: Proposes) -> None:
    """Raise `Unsuitable` for drafters that look tokens up, one per slot: no tree can branch."""
    if proposes.retrieved:
        raise Unsuitable(f"builder {builder.name!r} needs a drafter that proposes alternatives")


def check_width(width: int | None, vocab_size: int) -> None:
    """Raise ValueError if `width` exceeds the drafter's vocabulary."""
    if width is not None and width > vocab_size:
        raise ValueError(f"width is {width}: give at most {vocab_size}, the drafter's vocabulary")


def check_count(what: str, count: Any, least: int = 1) -> None:
    """Raise ValueError unless `count` is a whole number of at least `least`, or None."""
    whole = isinstance(count, int) and not isinstance(count, bool)
    if count is not None and not (whole and count >= least):
        raise ValueError(f"{what} is {count!r}: give a whole number of at least {least}")
