"""The builder protocol: a builder is a value; bound to the sizes of a call it becomes a `Growth`.

A `Builder` is a frozen dataclass that holds its own options only, so that it is hashable and can be
a static argument of a jit. `bind` joins it with what the drafter proposes and gives a `Growth`:
static sizes and three pure functions written for ONE tree, which the engine vmaps. Trees from one
proposal and trees that grow while the drafter runs take the same path:

    grown, nodes = growth.init(candidates of the root, depth_limit)
    for step in range(growth.steps):
        grown, nodes = growth.grow(grown, nodes, candidates of the nodes, step, depth_limit)
    tree = growth.finish(grown, root)

A builder of trees from one proposal has no steps: `init` holds the candidates and `finish` builds
the tree, see `grow_at_once`.

`budget` is everywhere the number of rows verified, the root included. Papers differ: DDTree and
BASTION count drafted nodes only (their M is our M + 1), JetSpec includes the root.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp

from jaxspec.core.state import Candidates, Nodes, Tree
from jaxspec.core.tree import root_only

LETTERS: Mapping[str, str] = {"w": "width"}
"""Settings that have a letter in a builder's spelling: `expand/w3` is `expand/width=3`."""


class Unsuitable(ValueError):
    """The drafter does not offer what a builder needs."""


class Proposes(NamedTuple):
    """What a drafter proposes in a call: the sizes that a builder is bound to.

    Attributes:
      depth: longest path that the call allows.
      slots: K, tokens that a step proposes after a node; at least `depth` for drafters that make
        one proposal a round.
      vocab_size: tokens that a slot chooses from; 1 where the drafter knows a single one.
      budget: rows to verify, the root included.
      steps: whether the drafter can propose after the nodes of a growing tree.
      rank_classes: classes of the drafter's rank head (SpecBlock); 0 without one.
    """

    depth: int
    slots: int
    vocab_size: int
    budget: int
    steps: bool = False
    rank_classes: int = 0

    @property
    def levels(self) -> int:
        """Depths that the first proposal covers."""
        return min(self.depth, self.slots)


class StepCandidates(flax.struct.PyTreeNode):
    """Ranked candidates of the M nodes of one step, for one tree; the root's step has M = 1.

    Attributes:
      token: int32 [M, K, C], best first.
      logprob: float32 [M, K, C], non-increasing over C; -inf marks a candidate that must not be
        used.
      classes: int32 [M, K], rank classes of the slots, or None.
      entropy: float32 [M, K], nats, of the distributions that the log-probabilities are of; None
        where the growth does not read it.
    """

    token: jax.Array
    logprob: jax.Array
    classes: jax.Array | None = None
    entropy: jax.Array | None = None


class Growth(NamedTuple):
    """How trees grow in a call. Equal builders and sizes give the identical object.

    Attributes:
      rows: N, rows of every tree, the root included: the budget, or fewer where the depth and the
        candidates allow no more.
      candidates: C, read of every slot.
      longest: no node is deeper.
      slots: K, tokens read of what a step proposes after a node.
      nodes: M, nodes that every step after the root's drafts from; 0 for trees of one proposal.
      steps: draft steps after the root's, at most.
      init: (StepCandidates [1, K, C], depth_limit int32 []) -> (grown, Nodes [M]). `grown` is a
        `Pool` where `nodes` is above 0.
      grow: (grown, Nodes, StepCandidates [M, K, C], step int32 [], depth_limit) -> (grown, Nodes);
        `step` counts from 0. Nodes that are not `live` get no offspring; the round drafts no
        further when no node is live.
      finish: (grown, root int32 []) -> Tree of N rows. Candidates of log-probability -inf are never
        used, and no node is deeper than `depth_limit`; `size` counts the rows in use.
      entropy: whether `StepCandidates.entropy` is read.
    """

    rows: int
    candidates: int
    longest: int
    slots: int
    nodes: int
    steps: int
    init: Callable[[StepCandidates, jax.Array], tuple[Any, Nodes]]
    grow: Callable[..., tuple[Any, Nodes]]
    finish: Callable[[Any, jax.Array], Tree]
    entropy: bool = False

    def build(self, candidates: Candidates, root: jax.Array, depth_limit: jax.Array) -> Tree:
        """Batched trees of one proposal.

        Args:
          candidates: at least `slots` deep and `candidates` wide. root, depth_limit: int32 [B].
        """
        if self.steps:
            raise ValueError("this tree grows in steps: call init, grow and finish")

        def one(token, logprob, entropy, root, limit):
            entropy = None if entropy is None else entropy[None]
            offered = StepCandidates(token[None], logprob[None], entropy=entropy)
            return self.finish(self.init(offered, limit)[0], root)

        return jax.vmap(one)(
            candidates.token, candidates.logprob, candidates.entropy, root, depth_limit
        )


@dataclasses.dataclass(frozen=True)
class Builder:
    """Base of all builders. A subclass sets `name` and defines `make_growth`.

    Attributes:
      name: how the builder is called, see `jaxspec.builders.register`.
    """

    name: ClassVar[str] = ""

    def bind(self, proposes: Proposes) -> Growth:
        """The growth of this builder's trees in a call of these sizes; cached by equality.

        Raises:
          Unsuitable: the drafter does not offer what the builder needs.
          ValueError: a size or an option out of range.
        """
        return _bind(self, proposes)

    def make_growth(self, proposes: Proposes) -> Growth:
        """What `bind` gives for a budget above 1, after `check`."""
        # Not an abstract method: everything else that a subclass may define has a default here.
        raise NotImplementedError(
            f"{type(self).__name__} has no trees: define make_growth(proposes), see "
            "docs/architecture.md"
        )

    def check(self, proposes: Proposes) -> None:
        """Raise `Unsuitable` or ValueError where this builder cannot work with what is proposed."""

    def check_drawn(self, growth: Growth) -> None:
        """Raise ValueError where candidates that are drawn (acceptance 'rejection') would bias the
        text: their tree's shape must not depend on the tokens.
        """
        if growth.nodes and growth.candidates > 1:
            raise ValueError(
                "acceptance 'rejection' does not go with a tree that grows in steps: "
                "choose builder 'chain', or acceptance 'sequential'"
            )

    @property
    def spends_budget(self) -> bool:
        """Whether the budget bounds the rows; else the builder's own options set them."""
        return True

    @property
    def varies(self) -> bool:
        """Whether trees may be small though the drafter offers enough for the budget."""
        return False

    @property
    def by_probability(self) -> bool:
        """Whether paths are ordered by their log-probability, which policies weigh."""
        return True

    def __str__(self) -> str:
        """The spelling that `parse_builder` reads."""
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


@functools.lru_cache(maxsize=1024)
def _bind(builder: Builder, proposes: Proposes) -> Growth:
    for what in ("depth", "slots", "vocab_size", "budget"):
        if getattr(proposes, what) < 1:
            least = "at least 1 (the root counts)" if what == "budget" else "at least 1"
            raise ValueError(f"{what} is {getattr(proposes, what)}: it must be {least}")
    builder.check(proposes)
    if proposes.budget == 1 and builder.spends_budget:
        return _ROOT_ONLY
    return builder.make_growth(proposes)


class Held(NamedTuple):
    """What a tree of one proposal is built from: its candidates and its depth limit int32 []."""

    candidates: StepCandidates
    depth_limit: jax.Array


def grow_at_once(
    build: Callable[..., Tree], *, rows: int, candidates: int, longest: int, entropy: bool = False
) -> Growth:
    """The growth of trees that are built from one proposal.

    Args:
      build: (token int32 [D, C], logprob float32 [D, C], root int32 [], depth_limit int32 []) ->
        one tree of `rows` rows, where D is `longest`, at least 1. It also takes `entropy` float32
        [D] where `entropy` is set here.
      rows, candidates, longest, entropy: of `Growth`.
    """
    depth = max(longest, 1)

    def init(offered: StepCandidates, depth_limit: jax.Array) -> tuple[Held, Nodes]:
        deep, wide = offered.token.shape[1:]
        if deep < depth or wide < candidates:
            raise ValueError(
                f"candidates are {deep} deep and {wide} wide: "
                f"this builder reads {depth} by {candidates}"
            )
        if entropy and offered.entropy is None:
            raise ValueError(
                "this builder reads the entropies of the candidates: give them, see `rank`"
            )
        none = jnp.zeros(0, jnp.int32)
        return Held(offered, depth_limit), Nodes(none, none, none, none, none > 0)

    def grow(*_: Any) -> tuple[Held, Nodes]:
        raise ValueError("a tree of one proposal does not grow: call finish")

    def finish(held: Held, root: jax.Array) -> Tree:
        offered = held.candidates
        token, logprob = (x[0, :depth, :candidates] for x in (offered.token, offered.logprob))
        more = {"entropy": offered.entropy[0, :depth]} if entropy else {}
        return build(token, logprob, root, held.depth_limit, **more)

    return Growth(rows, candidates, longest, depth, 0, 0, init, grow, finish, entropy)


def check_one_proposal(builder: Builder, proposes: Proposes) -> None:
    """Raise `Unsuitable` for drafters that propose a single token at a time: `builder` needs every
    depth before it chooses.
    """
    check_choices(builder, proposes)
    if proposes.steps and proposes.slots == 1:
        raise Unsuitable(
            f"builder {builder.name!r} needs a drafter that proposes several tokens at once"
        )


def check_choices(builder: Builder, proposes: Proposes) -> None:
    """Raise `Unsuitable` for drafters that know a single token a slot: there is nothing to branch
    over.
    """
    if proposes.vocab_size == 1:
        raise Unsuitable(f"builder {builder.name!r} needs a drafter that proposes alternatives")


def check_width(width: int | None, vocab_size: int) -> None:
    """Raise ValueError where a width exceeds the tokens that there are to choose from."""
    if width is not None and width > vocab_size:
        raise ValueError(f"width is {width}: give at most {vocab_size}, the drafter's vocabulary")


def check_count(what: str, count: Any, least: int = 1) -> None:
    """Raise ValueError unless `count` is a whole number of at least `least`, or None."""
    whole = isinstance(count, int) and not isinstance(count, bool)
    if count is not None and not (whole and count >= least):
        raise ValueError(f"{what} is {count!r}: give a whole number of at least {least}")


def _spell(value: Any) -> str:
    if isinstance(value, tuple):
        return json.dumps(value, separators=(",", ":"))
    return str(value) if isinstance(value, str) or callable(value) else json.dumps(value)


def _build_root(token: jax.Array, logprob: jax.Array, root: jax.Array, limit: jax.Array) -> Tree:
    return jax.tree.map(lambda x: x[0], root_only(root[None], 1))


_ROOT_ONLY = grow_at_once(_build_root, rows=1, candidates=1, longest=0)
