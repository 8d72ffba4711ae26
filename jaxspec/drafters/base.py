"""The drafter protocol: a bundle of pure functions closed over a static config, like an optax
transformation.

A drafter proposes in steps. A step takes M nodes of the growing tree and returns, for each node,
logits of the `slots` tokens that follow it. A block drafter needs one step, since its proposal at a
depth is the same under every parent. EAGLE-3 takes one step per level, SpecBlock one per block.

A drafter's variables are {"params": trained weights}. With a reduced draft vocabulary of D tokens
(EAGLE-3's `d2t`) they have a second collection that no optimizer touches: {"draft": {"ids":
int32 [D]}}, with ids in ascending order. `lm_head` [E, D] is in "draft" too if the output
projection is not trained.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp

from jaxspec.core.state import Nodes as Nodes


class TargetHead(NamedTuple):
    """The target's functions that drafters borrow.

    Attributes:
      embed: int32 [...] -> [..., E], the embedding table.
      unembed: [..., E] -> [..., V], the output projection of hidden states after the final norm.
    """

    embed: Callable[[jax.Array], jax.Array]
    unembed: Callable[[jax.Array], jax.Array]


class Committed(flax.struct.PyTreeNode):
    """T rows that were committed; rows at or beyond `count` are garbage.

    Attributes:
      token: int32 [B, T], the tokens.
      following: int32 [B, T], the token after each row; after the last row it is the new root,
        which has no features yet.
      features: [B, T, F], target features of the layers that the drafter asks for.
      position: int32 [B], absolute position of row 0.
      count: int32 [B], number of valid rows; with 0 the state must not change.
    """

    token: jax.Array
    following: jax.Array
    features: jax.Array
    position: jax.Array
    count: jax.Array


class Proposal(NamedTuple):
    """The proposal of a step.

    Attributes:
      logits: [B, M, K, V], logits of the tokens at depths 1..K below each node, -inf for tokens
        that cannot be drafted. Slot k > 1 is conditioned on the drafter's greedy tokens in the
        slots before it, or on none.
      classes: int32 [B, M, K], each slot's rank class, below `Drafter.rank_classes`; or None.
      hidden: [B, M, K, E], the hidden states that are projected to logits, what `Drafter.project`
        reads; None if the drafter does not return them.
      confidence: float32 [B, M, K], logit that the token which the drafter takes at a slot is
        accepted, given that the tokens before it were; None if the drafter does not judge itself.
      class_logits: float32 [B, M, K, rank_classes], what `classes` are the best of, for training;
        None without rank classes.
      tokens: int32 [B, M, K, C], the tokens of the columns of `logits`, which then are [B, M, K, C]
        and final: settings of sampling do not change them. Of columns with one token, all but one
        are -inf. None: the vocabulary.
    """

    logits: jax.Array
    classes: jax.Array | None = None
    hidden: jax.Array | None = None
    confidence: jax.Array | None = None
    class_logits: jax.Array | None = None
    tokens: jax.Array | None = None


class Lookahead(NamedTuple):
    """What the distributions of a round are made of, if a node's depends on its depth and its token
    alone. `Drafter.expand` then reads nothing else of a node and leaves the scratch as it is.

    Attributes:
      logits: [B, K, V], logits of every depth without what the token before adds; -inf for tokens
        that cannot be drafted.
      between: (previous int32 [B, T, M], following int32 [B, T, N]) -> [B, T, M, N], what tokens of
        depths 1..T add to the logits of tokens one level deeper.
    """

    logits: jax.Array
    between: Callable[[jax.Array, jax.Array], jax.Array]


class Conditions(NamedTuple):
    """The few tokens of every depth that a drafter conditions on (TreeFlash).

    Rounds choose them, compute what follows all of them at once, and look nodes up in these tables.
    A node with another token gets no children.

    Attributes:
      count: M, tokens of a depth.
      logits: (params, scratch of `start`, target) -> [B, K, V], logits of every depth without the
        token before, whose best tokens are chosen.
    """

    count: int
    logits: Callable[[Any, Any, TargetHead], jax.Array]


class Drafter(NamedTuple):
    """The functions and sizes of a drafter that the decode loop uses.

    Attributes:
      feature_layers: target decoder layers (0-based) whose outputs `absorb` reads; -1 means the
        embeddings, the number of layers itself the hidden state after the final norm.
      depth: longest path that one round proposes.
      slots: K, tokens that a step proposes after a node; `depth` if there is only one step.
      init: (batch, capacity, dtype) -> state before any token is committed. Each of its arrays has
        one axis of `batch` entries.
      absorb: (params, state, target, committed) -> state.
      start: (params, state, target, root [B], rows) -> (Proposal of the root, M = 1; scratch).
        `rows` is static: the number of slots that the whole round computes, K + steps * M * K; the
        scratch needs room for them. Block drafters also take `block` int32 [B] or None: slots of
        each sequence's block, the anchor included. Proposals after these slots are ignored.
      expand: (params, state, scratch, target, nodes, first) -> (Proposal, scratch), or None if
        one step proposes everything. `first` int32 []: index of the step's first slot, see
        `Nodes.source`.
      rank_classes: number of classes in `Proposal.classes`; 0 if it is None.
      confident: whether there is a `Proposal.confidence`.
      look_ahead: (params, scratch of `start`) -> Lookahead; None for drafters whose distributions
        depend on more than a node's depth and token.
      conditions: the tokens that nodes must have to be drafted from, if `expand` reads nothing of a
        node but its depth and token, and leaves the scratch as it is; None: all tokens.
      project: (params, hidden [..., E] of `Proposal`) -> (logits [..., D] of the draft vocabulary,
        class logits [..., rank_classes] or None), the output projections of a drafter that has its
        own; None if it borrows the target's, or has another one for every slot.
      choices: C, columns of `Proposal.tokens`; 1 for drafters of one candidate a slot; 0: slots
        choose from the draft vocabulary.
      most_nodes: scratch -> int32 [B], drafted nodes that the round's tree may have; None: as many
        as the builder makes.
      remember: (state, scratch) -> state, after the last step of a round, for drafters that compare
        what they proposed with what `absorb` sees; None: rounds leave nothing to remember.
    """

    feature_layers: tuple[int, ...]
    depth: int
    slots: int
    init: Callable[..., Any]
    absorb: Callable[..., Any]
    start: Callable[..., tuple[Proposal, Any]]
    expand: Callable[..., tuple[Proposal, Any]] | None = None
    rank_classes: int = 0
    confident: bool = False
    look_ahead: Callable[..., Lookahead] | None = None
    conditions: Conditions | None = None
    project: Callable[[Any, jax.Array], tuple[jax.Array, jax.Array | None]] | None = None
    choices: int = 0
    most_nodes: Callable[[Any], jax.Array] | None = None
    remember: Callable[[Any, Any], Any] | None = None


def whole_vocabulary(logits: jax.Array, ids: jax.Array, vocab_size: int) -> jax.Array:
    """Scatter logits [..., D] of a draft vocabulary into logits [..., V], -inf for other tokens."""
    whole = jnp.full((*logits.shape[:-1], vocab_size), -jnp.inf, logits.dtype)
    return whole.at[..., ids].set(logits, indices_are_sorted=True, unique_indices=True)
