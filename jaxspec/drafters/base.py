"""The drafter protocol: a bundle of pure functions closed over a static config, in the manner of
optax.

A drafter proposes in steps. One step takes M nodes of the growing tree and gives, for each, logits
for the `slots` tokens that follow it. A block drafter needs one step, since what it proposes at a
depth is the same under every parent; EAGLE-3 takes a step a level and SpecBlock one a block.

A drafter's variables are {"params": what is trained}. One with a reduced draft vocabulary
(EAGLE-3's `d2t`) of D tokens has a collection beside it that no optimizer touches: {"draft":
{"ids": int32 [D]}}, ids in ascending order; `lm_head` [E, D] stands there too where the output
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
    """What drafters borrow from the target.

    Attributes:
      embed: int32 [...] -> [..., E], its embedding table.
      unembed: [..., E] -> [..., V], its output projection, of hidden states after the final norm.
    """

    embed: Callable[[jax.Array], jax.Array]
    unembed: Callable[[jax.Array], jax.Array]


class Committed(flax.struct.PyTreeNode):
    """T rows that became part of the text; those at or beyond `count` are garbage.

    Attributes:
      token: int32 [B, T], the tokens.
      following: int32 [B, T], the token after each; the last one's is the new root, which has no
        features yet.
      features: [B, T, F], the target's, of the layers that the drafter asks for.
      position: int32 [B], absolute position of row 0.
      count: int32 [B], rows that count; 0 must leave the state as it is.
    """

    token: jax.Array
    following: jax.Array
    features: jax.Array
    position: jax.Array
    count: jax.Array


class Proposal(NamedTuple):
    """What a step proposes.

    Attributes:
      logits: [B, M, K, V], of the tokens at depths 1..K below each node, -inf for tokens that
        cannot be drafted; at slot k > 1 the drafter's greedy tokens, or none, stand before it.
      classes: int32 [B, M, K], each slot's rank class, below `Drafter.rank_classes`; or None.
      hidden: [B, M, K, E], the hidden states that the logits are projections of; None where a
        drafter does not show them.
    """

    logits: jax.Array
    classes: jax.Array | None = None
    hidden: jax.Array | None = None


class Drafter(NamedTuple):
    """What the decode loop needs of a drafter.

    Attributes:
      feature_layers: target decoder layers (0-based, their outputs) that `absorb` reads; the number
        of layers itself stands for the hidden state after the final norm.
      depth: longest path that one round proposes.
      slots: K, tokens that a step proposes after a node; `depth` if there is one step only.
      init: (batch, capacity, dtype) -> state, before any token is committed.
      absorb: (params, state, target, committed) -> state.
      start: (params, state, target, root [B], rows) -> (Proposal of the root, M = 1; scratch).
        `rows` is static: slots that the whole round computes, K + steps * M * K; the scratch needs
        room for them. Block drafters also take `block` int32 [B] or None: slots of each sequence's
        block, the anchor included; what is proposed after them is not looked at.
      expand: (params, state, scratch, target, nodes, first) -> (Proposal, scratch), or None where
        one step is all. `first` int32 []: index of the step's first slot, see `Nodes.source`.
      rank_classes: number of the classes that `Proposal.classes` counts; 0 where it is None.
    """

    feature_layers: tuple[int, ...]
    depth: int
    slots: int
    init: Callable[..., Any]
    absorb: Callable[..., Any]
    start: Callable[..., tuple[Proposal, Any]]
    expand: Callable[..., tuple[Proposal, Any]] | None = None
    rank_classes: int = 0


def whole_vocabulary(logits: jax.Array, ids: jax.Array, vocab_size: int) -> jax.Array:
    """Logits [..., V] of which only the draft vocabulary's [..., D] are given, the others being
    -inf.
    """
    whole = jnp.full((*logits.shape[:-1], vocab_size), -jnp.inf, logits.dtype)
    return whole.at[..., ids].set(logits, indices_are_sorted=True, unique_indices=True)
