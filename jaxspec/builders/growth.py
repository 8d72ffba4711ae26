"""How trees grow in a call: the drafter's proposals, the candidates of a step, and `Growth`.

`grow_at_once` makes the growth of trees that are built from one proposal.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp

from jaxspec.core.state import Candidates, Nodes, Tree
from jaxspec.core.tree import root_only


class Proposes(NamedTuple):
    """Sizes of a drafter's proposals in a call, to which a builder is bound.

    Attributes:
      depth: longest path that the call allows.
      slots: K, tokens that a step proposes after a node; at least `depth` for drafters that make
        one proposal per round.
      vocab_size: tokens that a slot chooses from.
      budget: rows to verify, the root included.
      steps: whether the drafter can propose after the nodes of a growing tree.
      rank_classes: classes of the drafter's rank head (SpecBlock); 0 without one.
      retrieved: whether the tokens are looked up, so that a slot has one candidate and no others.
      confident: whether the drafter says how likely each of its tokens is accepted.
      looks_ahead: whether a node's distribution depends on its depth and token alone.
    """

    depth: int
    slots: int
    vocab_size: int
    budget: int
    steps: bool = False
    rank_classes: int = 0
    retrieved: bool = False
    confident: bool = False
    looks_ahead: bool = False

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
      entropy: float32 [M, K], entropy in nats of each slot's distribution; None if the growth does
        not read it.
      scores: float32 [M, K, C], log-probabilities at the scale that a policy reads; None if no
        policy reads them. Trees must not depend on them.
    """

    token: jax.Array
    logprob: jax.Array
    classes: jax.Array | None = None
    entropy: jax.Array | None = None
    scores: jax.Array | None = None


class Growth(NamedTuple):
    """How trees grow in a call. Equal builders and sizes give the identical object.

    Attributes:
      rows: N, rows of every tree, the root included: the budget, or fewer if the depth and the
        candidates allow no more.
      candidates: C, candidates read per slot.
      longest: depth of the deepest possible node.
      slots: K, tokens read per proposal.
      nodes: M, nodes that every step after the root's drafts from; 0 for trees from one proposal.
      steps: maximum number of draft steps after the root's.
      init: (StepCandidates [1, K, C], depth_limit int32 []) -> (grown, Nodes [M]). `grown` is a
        `Pool` where `nodes` is above 0.
      grow: (grown, Nodes, StepCandidates [M, K, C], step int32 [], depth_limit) -> (grown, Nodes);
        `step` counts from 0. Nodes that are not `live` get no children; the round stops drafting
        when no node is live.
      finish: (grown, root int32 []) -> Tree of N rows. Candidates of log-probability -inf are never
        used, and no node is deeper than `depth_limit`; `size` counts the rows in use. Which nodes
        of a pool become which rows must not depend on their tokens.
      entropy: whether `StepCandidates.entropy` is read.
      confidence: whether paths are scored by the drafter's `Proposal.confidence` instead of its
        distributions; each slot then has one candidate.
      shortlist: tokens of every depth among which the nodes that matter are foreseen, see
        `jaxspec.round.lookahead`; 0: every step computes its own nodes.
      foreseen: nodes whose distributions are computed at once with a shortlist.
      matters: (pool, depth_limit) -> bool [P], the nodes of the pool whose children may be in the
        tree. Builders without a shortlist have none.
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
    confidence: bool = False
    shortlist: int = 0
    foreseen: int = 0
    matters: Callable[[Any, jax.Array], jax.Array] | None = None

    def build(self, candidates: Candidates, root: jax.Array, depth_limit: jax.Array) -> Tree:
        """Build batched trees from one proposal.

        Args:
          candidates: at least `slots` deep and `candidates` wide.
          root: int32 [B], token of row 0.
          depth_limit: int32 [B], deepest node allowed.
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


class Held(NamedTuple):
    """Everything that a tree is built from: its candidates and its depth limit int32 []."""

    candidates: StepCandidates
    depth_limit: jax.Array


def grow_at_once(
    build: Callable[..., Tree], *, rows: int, candidates: int, longest: int, entropy: bool = False
) -> Growth:
    """Make the growth of trees that are built from one proposal.

    Args:
      build: (token int32 [D, C], logprob float32 [D, C], root int32 [], depth_limit int32 []) ->
        one tree of `rows` rows, where D is `longest`, at least 1. It also takes `entropy` float32
        [D] if `entropy` is set here.
      rows, candidates, longest, entropy: see `Growth`.
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


def _build_root(token: jax.Array, logprob: jax.Array, root: jax.Array, limit: jax.Array) -> Tree:
    return jax.tree.map(lambda x: x[0], root_only(root[None], 1))


ROOT_ONLY = grow_at_once(_build_root, rows=1, candidates=1, longest=0)
"""The growth of trees that hold only the root."""


def count_nodes(width: int, depth: int, enough: int) -> int:
    """Count the nodes of the full `width`-ary tree of `depth` levels, the root included.

    Counting stops at `enough`.
    """
    total = level = 1
    for _ in range(depth):
        level *= width
        total += level
        if total >= enough:
            break
    return total
