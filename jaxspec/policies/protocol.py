"""The policy protocol: what a policy sees, when it is asked, and what it answers, as a bundle of
pure functions.

A policy decides how many slots a block has (once a request), whether a round drafts, whether a tree
that grows in steps grows further, and how many of the tree's rows are verified. It answers with
numbers below static caps, never with shapes, so that no decision compiles anything. Drafters change
speed and never text, and so do policies.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.struct
import jax

from jaxspec.core.state import Accepted, Pool, Tree

# What costs something to observe, and is computed for policies that name it.
NEEDS = frozenset({"entropy", "top", "hidden", "logits"})
# Probabilities in `Observation.top`.
TOP = 10


class Shape(NamedTuple):
    """Static sizes of the rounds that a policy decides about.

    Attributes:
      batch: B sequences. rows: N, of the largest tree. depth: longest drafted path.
      nodes: M, nodes that a step drafts from. candidates: C, offered after each. steps: draft steps
        after the root's; a block drafter has none, and no nodes.
    """

    batch: int
    rows: int
    depth: int
    nodes: int = 0
    candidates: int = 0
    steps: int = 0


@flax.struct.dataclass
class Observation:
    """What a policy sees. None: not there at this moment, or not asked for in `Functions.needs`.

    Attributes:
      context: int32 [B], cached tokens. live: bool [B], sequences that are not finished.
      steps: int32 [], draft steps after the root's that the batch has taken; a sequence that
        stopped took fewer.
      pool: candidates [B, P] in the order of their generation.
      frontier: float32 [B, M], path log-probabilities of the nodes to be drafted from next; -inf:
        no node.
      entropy: float32 [B, M], nats, of the distribution that each of these nodes is a candidate of.
      top: float32 [B, M, TOP], the largest probabilities of the same distribution, in falling
        order.
      hidden: [B, M, E], the drafter's hidden state that the distribution was projected from.
      carried: float32 [B, M], what the act `carry` gave for the node below which each of these
        hangs; 0 below the root.
      tree: the round's tree at capacity.
      logits: float32 [B, V], the target's after the last prompt token.
    """

    context: jax.Array
    live: jax.Array
    steps: jax.Array | int = 0
    pool: Pool | None = None
    frontier: jax.Array | None = None
    entropy: jax.Array | None = None
    top: jax.Array | None = None
    hidden: jax.Array | None = None
    carried: jax.Array | None = None
    tree: Tree | None = None
    logits: jax.Array | None = None


@flax.struct.dataclass
class Outcome:
    """What came of a round.

    Attributes:
      drafted: bool [], whether it drafted. rows: int32 [B], verified rows, the root included.
        steps: int32 [], draft steps.
      tree: as verified. accepted: with `count` int32 [B], the emitted tokens. context: int32 [B],
        cached tokens before the round. live: bool [B], not finished before it.
    """

    drafted: jax.Array
    rows: jax.Array
    steps: jax.Array
    tree: Tree
    accepted: Accepted
    context: jax.Array
    live: jax.Array


class Acts(NamedTuple):
    """Decisions, each (controls, state, Observation) -> answer, or None where the policy leaves
    things as they are.

    Attributes:
      block: int32 [B], slots of a block drafter's block, the anchor included; asked once, after the
        prefill.
      draft: bool [], whether the next round drafts. Rounds that do and rounds that do not have a
        loop each, and both loops ask: the answer must follow from controls, state and context
        alone.
      keep: bool [B, M], which of the nodes to be drafted from next become part of the tree; all
        other candidates of their level are dropped. Asked after each draft step of a drafter that
        proposes a token a step.
      deeper: bool [B], whether to take another draft step; asked after each of a drafter that works
        in steps.
      carry: float32 [B, M], a number for each of these nodes, which `Observation.carried` holds for
        those below it.
      rows: int32 [] or [B], rows to verify, the root included; asked when the tree is at hand.
    """

    block: Callable[..., jax.Array] | None = None
    draft: Callable[..., jax.Array] | None = None
    keep: Callable[..., jax.Array] | None = None
    deeper: Callable[..., jax.Array] | None = None
    carry: Callable[..., jax.Array] | None = None
    rows: Callable[..., jax.Array] | None = None


class Functions(NamedTuple):
    """A policy's functions, closed over its static settings.

    Attributes:
      init: (Shape) -> state, any pytree; what `act` reads and `observe` writes.
      act: the decisions.
      observe: (controls, state, Outcome) -> state.
      needs: of `NEEDS`, what `act` reads of an observation beyond what is at hand anyway.
      resume: (state) -> state, as a call begins, whose texts may be of another kind than those
        before.
    """

    init: Callable[[Shape], Any]
    act: Acts
    observe: Callable[[Any, Any, Outcome], Any]
    needs: frozenset[str] = frozenset()
    resume: Callable[[Any], Any] = lambda state: state


@dataclasses.dataclass(frozen=True)
class Settings:
    """Static choices of a policy; each distinct value is one compilation. Subclasses give the
    functions.

    Attributes:
      widths: rows that verification is compiled for, ascending from 1; trees have the last one's
        rows at most.
    """

    widths: tuple[int, ...] = ()

    def functions(self) -> Functions:
        """The policy's functions; equal settings must give the identical ones, hence
        `functools.lru_cache` below them.
        """
        # Not an abstract method, since what else a subclass may define has a default here.
        raise NotImplementedError(
            f"{type(self).__name__} has no functions: define the method, it is what a policy does"
        )

    def check(self, shape: Shape) -> None:
        """Raise a ValueError where the policy cannot decide about rounds of these sizes, and say
        which it can.
        """

    def clocked(self, controls: Any, before: Any, after: Any, seconds: float) -> Any:
        """The controls after a call, for policies that predict what rounds take; on the host,
        between calls.

        Args:
          before, after: the state before and after the call's rounds. seconds: what they took,
            wall-clock; only calls whose rounds ran in one device loop and compiled nothing are
            told.
        """
        return controls


@flax.struct.dataclass
class Policy:
    """A policy for `jaxspec.decode(policy=...)`; what it learned comes back in `Output.policy`.

    Attributes:
      settings: static. controls: read by the rounds: latency tables, weights. state: written by
        them; None: nothing was seen.
      temperature: that of the rounds that `state` comes from; None: of those to come. elsewhere:
        states of other temperatures.
    """

    settings: Settings = flax.struct.field(pytree_node=False)
    controls: Any
    state: Any = None
    temperature: float | None = flax.struct.field(pytree_node=False, default=None)
    elsewhere: dict[str, Any] = dataclasses.field(default_factory=dict)

    def at_temperature(self, temperature: float) -> Policy:
        """The policy with what it learned at this sampling temperature.

        Drafting pays less when sampling, and where the drafter ranks under the target's noise a
        score means something else.
        """
        if self.temperature in (None, temperature):
            return self.replace(temperature=temperature)
        states = {**self.elsewhere, f"{self.temperature:g}": self.state}
        return self.replace(
            state=states.pop(f"{temperature:g}", None), temperature=temperature, elsewhere=states
        )


def unchanged(controls, state, outcome: Outcome):
    """`observe` of a policy that learns nothing from rounds."""
    return state
