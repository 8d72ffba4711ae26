"""The policy protocol: a policy's observations, its decisions and when it is asked for them.

A policy is a bundle of pure functions. It decides how many slots a block has (once per request),
whether a round drafts, whether a tree that grows in steps grows further, and how many of the tree's
rows are verified. It answers with numbers below static caps, never with shapes, so no decision
compiles anything. Like drafters, policies change the speed, never the text.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.struct
import jax

from jaxspec.core.state import Accepted, Pool, Tree

# Observations that take time; they are computed only for policies that name them.
NEEDS = frozenset({"entropy", "top", "hidden", "logits"})
# Those of the distributions of draft steps.
OF_STEPS = NEEDS - {"logits"}
# Number of probabilities in `Observation.top`.
TOP = 10


class RoundShape(NamedTuple):
    """Static sizes of the rounds that a policy decides about.

    Attributes:
      batch: B, sequences.
      rows: N, rows of the largest tree.
      depth: length of the longest drafted path.
      nodes: M, nodes that a step drafts from; 0 for a block drafter.
      candidates: C, tokens drafted after each node.
      steps: draft steps after the root's; 0 for a block drafter.
    """

    batch: int
    rows: int
    depth: int
    nodes: int = 0
    candidates: int = 0
    steps: int = 0


class Observation(flax.struct.PyTreeNode):
    """The input of a policy.

    A field is None if it is not available at this moment or not named in `Functions.needs`.
    Log-probabilities, entropies and probabilities are at the policy's scale, see `PolicyConfig`.

    Attributes:
      context: int32 [B], cached tokens.
      live: bool [B], sequences that are not finished.
      steps: int32 [], draft steps after the root's that the batch has taken; a sequence that
        stopped took fewer.
      pool: candidates [B, P] in the order in which they were drafted.
      frontier: float32 [B, M], path log-probabilities of the nodes to draft from next; -inf marks
        an empty slot. The act `rows` sees that of the last step, if the policy needs its figures.
      entropy: float32 [B, M], nats: entropy of the draft distribution that each frontier node was
        sampled from.
      top: float32 [B, M, TOP], the largest probabilities of that distribution, in descending order.
      hidden: [B, M, E], the drafter's hidden state that the distribution was projected from.
      carried: float32 [B, M], the answer of the act `carry` for the parent of each frontier node; 0
        for children of the root.
      tree: the round's tree at capacity.
      logits: float32 [B, V], the target's logits after the last prompt token.
      built: the same with the scores that the tree is ordered by; None if these are shown here.
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
    built: Observation | None = None


class Outcome(flax.struct.PyTreeNode):
    """The result of a round.

    Attributes:
      drafted: bool [], whether the round drafted.
      rows: int32 [B], verified rows, the root included.
      steps: int32 [], draft steps.
      tree: the tree as it was verified, with log-probabilities at the policy's scale.
      accepted: with `count` int32 [B], the emitted tokens.
      context: int32 [B], cached tokens before the round.
      live: bool [B], sequences that were not finished before the round.
      built: the same with the scores that the tree is ordered by; None if these are shown here.
    """

    drafted: jax.Array
    rows: jax.Array
    steps: jax.Array
    tree: Tree
    accepted: Accepted
    context: jax.Array
    live: jax.Array
    built: Outcome | None = None


class Acts(NamedTuple):
    """Decisions, each a function (controls, state, Observation) -> answer, or None for no decision.

    Attributes:
      block: int32 [B], slots of a block drafter's block, the anchor included. Asked once, after the
        prefill. Rounds draft the smallest block of `Functions.blocks` that holds all answers of
        the batch.
      draft: bool [], whether the next round drafts. Rounds with and without drafting run in
        separate loops, and both loops ask, so the answer must depend only on controls, state and
        context.
      keep: bool [B, M], which frontier nodes become part of the tree; all other candidates of their
        level are dropped. Asked after each draft step of a drafter of one token per step.
      deeper: bool [B], whether to take another draft step. Asked after each step of a drafter that
        works in steps.
      carry: float32 [B, M], a number for each frontier node, which its children see as
        `Observation.carried`.
      rows: int32 [] or [B], rows to verify, the root included. Asked when the tree is complete.
    """

    block: Callable[..., jax.Array] | None = None
    draft: Callable[..., jax.Array] | None = None
    keep: Callable[..., jax.Array] | None = None
    deeper: Callable[..., jax.Array] | None = None
    carry: Callable[..., jax.Array] | None = None
    rows: Callable[..., jax.Array] | None = None


class Functions(NamedTuple):
    """A policy's functions, closed over its static config.

    Attributes:
      init: (RoundShape) -> state, any pytree that `act` reads and `observe` writes.
      act: the decisions.
      observe: (controls, state, Outcome) -> state, after every round.
      needs: the observations of `NEEDS` that `act` reads.
      resume: (state) -> state. Called at the start of each decode; reset anything specific to the
        previous prompts.
      blocks: block sizes that the act `block` chooses from, ascending; drafting is compiled for
        each of them. (): it may answer any size, and gets powers of two.
      chains: whether the acts read the tree as a chain, row after row.
    """

    init: Callable[[RoundShape], Any]
    act: Acts
    observe: Callable[[Any, Any, Outcome], Any]
    needs: frozenset[str] = frozenset()
    resume: Callable[[Any], Any] = lambda state: state
    blocks: tuple[int, ...] = ()
    chains: bool = False

    @property
    def follows_steps(self) -> bool:
        """Whether it decides after draft steps, or reads figures of their distributions."""
        stops = self.act.deeper is not None or self.act.keep is not None
        return stops or bool(self.needs & OF_STEPS)


@dataclasses.dataclass(frozen=True)
class PolicyConfig:
    """Static choices of a policy; each distinct value is one compilation.

    Subclasses define `functions`.

    Attributes:
      widths: numbers of rows that verification is compiled for, ascending from 1. The last one is
        the maximum number of rows of a tree.
      score_scale: divisor of the drafter's logits in what the policy reads of them: path
        log-probabilities, probabilities and entropies. They are then the same at every temperature
        and score temperature of a call, without noise; 1 is the plain softmax. A policy has learnt,
        or its thresholds were chosen, at one scale. None: it reads no scores, or those that the
        tree is ordered by, which depend on all of these.
      score_temperature: divisor of the draft logits when paths are scored, for calls that give
        none; 1 scores paths by the drafter's raw probabilities. None: the drafter's own.
      each_round: report the time of every round instead of that of whole decodes, see
        `observe_seconds`. The host then waits for each.
    """

    widths: tuple[int, ...] = ()
    score_scale: float | None = dataclasses.field(default=1.0, kw_only=True)
    score_temperature: float | None = dataclasses.field(default=None, kw_only=True)
    each_round: bool = dataclasses.field(default=False, kw_only=True)

    def functions(self) -> Functions:
        """Return the policy's functions.

        Equal configs must return identical functions: cache them with `functools.lru_cache`.
        """
        # Not an abstract method: all other methods that a subclass may define have defaults here.
        raise NotImplementedError(
            f"{type(self).__name__} has no functions: define the method `functions`"
        )

    def check(self, shape: RoundShape) -> None:
        """Raise a ValueError if the policy cannot decide about rounds of these sizes.

        The message names sizes that it supports.
        """

    def observe_seconds(self, controls: Any, before: Any, after: Any, seconds: float) -> Any:
        """Return the controls after some rounds, for policies that predict the time of rounds.

        Called on the host after a decode whose rounds ran in one device loop, or with `each_round`
        after every round: the next one reads the new controls. Rounds that compiled something are
        not reported, and none where several processes decode.

        Args:
          controls: the controls of these rounds.
          before, after: the state before and after them.
          seconds: their wall-clock time.
        """
        return controls


class Policy(flax.struct.PyTreeNode):
    """A policy for `jaxspec.Speculation(policy=...)`; what it learned comes back in `Output.policy`.

    Attributes:
      config: static choices that rounds are compiled for.
      controls: any pytree that rounds read: round costs, weights, thresholds.
      state: state after the last round; None before the first.
      temperature: sampling temperature of the rounds that wrote `state`; None before the first.
      elsewhere: {temperature: state} of other temperatures.
    """

    config: PolicyConfig = flax.struct.field(pytree_node=False)
    controls: Any
    state: Any = None
    temperature: float | None = flax.struct.field(pytree_node=False, default=None)
    elsewhere: dict[str, Any] = dataclasses.field(default_factory=dict)

    def at_temperature(self, temperature: float) -> Policy:
        """Return the policy with the state that it learned at this sampling temperature.

        Each temperature has its own state; a new temperature starts without one. Drafting gains
        less when sampling, and a drafter that ranks with the target's noise has other scores.
        """
        if self.temperature in (None, temperature):
            return self.replace(temperature=temperature)
        states = {**self.elsewhere, f"{self.temperature:g}": self.state}
        return self.replace(
            state=states.pop(f"{temperature:g}", None), temperature=temperature, elsewhere=states
        )


def keep_state(controls: Any, state: Any, outcome: Outcome) -> Any:
    """Return `state` unchanged: the `observe` of a policy that learns nothing from rounds."""
    return state
