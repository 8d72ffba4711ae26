"""The builder protocol: a builder is a value; bound to the sizes of a call it becomes a `Growth`.

A `Builder` is a frozen dataclass that holds only its own options, so it is hashable and can be a
static argument of a jitted function. `bind` combines it with the sizes of the drafter's proposals
and returns a `Growth`: static sizes and three pure functions written for ONE tree, which the loop
vmaps. Trees from one proposal and trees that grow while the drafter runs take the same path:

    grown, nodes = growth.init(candidates of the root, depth_limit)
    for step in range(growth.steps):
        grown, nodes = growth.grow(grown, nodes, candidates of the nodes, step, depth_limit)
    tree = growth.finish(grown, root)

A builder of trees from one proposal has no steps: `init` keeps the candidates and `finish` builds
the tree, see `growth.grow_at_once`.

`budget` is always the number of rows verified, the root included. Papers differ: DDTree and BASTION
count only drafted nodes (their M is our M + 1), JetSpec includes the root.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from jaxspec.builders.growth import ROOT_ONLY, Growth, Proposes, grow_at_once
from jaxspec.builders.scores import LOGPROB, Score, own_costs
from jaxspec.core.state import Tree

LETTERS: Mapping[str, str] = {"w": "width"}
"""Settings that have a letter in a builder's spelling: `expand/w3` is `expand/width=3`."""


class Unsuitable(ValueError):
    """The drafter's proposals do not suit the builder."""


@dataclasses.dataclass(frozen=True)
class Builder:
    """Base of all builders. A subclass sets `name` and defines `make_growth`.

    Attributes:
      name: how the builder is called, see `jaxspec.builders.register`.
    """

    name: ClassVar[str] = ""

    def bind(self, proposes: Proposes) -> Growth:
        """Return the growth of this builder's trees in a call of these sizes; cached by equality.

        Raises:
          Unsuitable: the drafter's proposals do not suit the builder.
          ValueError: a size or an option is out of range.
        """
        return _bind(self, proposes)

    def make_growth(self, proposes: Proposes) -> Growth:
        """Return the growth for a budget above 1; `bind` calls this after `check`."""
        # Not an abstract method: all other methods that a subclass may define have defaults here.
        raise NotImplementedError(
            f"{type(self).__name__} has no trees: define make_growth(proposes), see "
            "docs/architecture.md"
        )

    def check(self, proposes: Proposes) -> None:
        """Raise `Unsuitable` or ValueError if this builder cannot work with these proposals."""

    def check_drawn(self, growth: Growth) -> None:
        """Raise ValueError if drawn candidates (acceptance 'rejection') would bias the text.

        The shape of their tree must not depend on the tokens.
        """
        if growth.nodes and growth.candidates > 1:
            raise ValueError(
                "acceptance 'rejection' does not go with a tree that grows in steps by its scores: "
                "choose builder 'chain' or 'static', or acceptance 'sequential'"
            )

    @property
    def spends_budget(self) -> bool:
        """Whether the budget bounds the rows; else the builder's own options set them."""
        return True

    @property
    def varies(self) -> bool:
        """Whether trees may be small although the drafter offers enough for the budget."""
        return False

    @property
    def by_probability(self) -> bool:
        """Whether paths are ordered by their log-probability, which policies read."""
        return True

    def __str__(self) -> str:
        """Return the spelling that `parse_builder` reads."""
        letters = {name: letter for letter, name in LETTERS.items()}
        score, settings = "", []
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value == field.default:
                continue
            if field.name == "score":
                score = f"+{value}"
            elif field.name in letters and isinstance(value, int):
                settings.append(f"/{letters[field.name]}{value}")
            else:
                settings.append(f"/{field.name}={_spell(value)}")
        return self.name + score + "".join(settings)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScoredBuilder(Builder):
    """Base of builders that choose from one proposal by a score of paths."""

    score: Score = LOGPROB

    def check(self, proposes: Proposes) -> None:
        check_one_proposal(self, proposes)

    @property
    def by_probability(self) -> bool:
        return self.score == LOGPROB

    def grow_by_score(
        self, build: Callable[..., Tree], *, rows: int, candidates: int, longest: int
    ) -> Growth:
        """Make the growth of trees by the costs of this builder's score.

        Args:
          build: as `grow_at_once` takes it, with two more arguments: rows, and the costs of the
            candidates or None, see `scores.own_costs`.
          rows, candidates, longest: see `Growth`.
        """

        def build_scored(token, logprob, root, depth_limit, entropy=None):
            steps = own_costs(self.score, logprob, entropy, depth_limit)
            return build(token, logprob, root, depth_limit, rows, steps)

        return grow_at_once(
            build_scored,
            rows=rows,
            candidates=candidates,
            longest=longest,
            entropy=self.score != LOGPROB,
        )


@functools.lru_cache(maxsize=1024)
def _bind(builder: Builder, proposes: Proposes) -> Growth:
    for what in ("depth", "slots", "vocab_size", "budget"):
        if getattr(proposes, what) < 1:
            least = "at least 1 (the root counts)" if what == "budget" else "at least 1"
            raise ValueError(f"{what} is {getattr(proposes, what)}: it must be {least}")
    builder.check(proposes)
    if proposes.budget == 1 and builder.spends_budget:
        return ROOT_ONLY
    return builder.make_growth(proposes)


def _spell(value: Any) -> str:
    if isinstance(value, tuple):
        return json.dumps(value, separators=(",", ":"))
    return str(value) if isinstance(value, str) or callable(value) else json.dumps(value)


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
