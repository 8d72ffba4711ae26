"""The pytrees of the decode loop. Shapes are documented here, once.

B sequences, N tree rows, W = ceil(N / 32) mask words, L layers, S cache capacity, K kv heads, D
head dim, C candidates per depth, A = longest path + bonus, M nodes that a step drafts from.
"""

from __future__ import annotations

from typing import Any

import flax.struct
import jax


class KVCache(flax.struct.PyTreeNode):
    """Keys and values of the committed tokens. Rows at or beyond `length` are masked, never read.

    Attributes:
      k, v: [L, B, K, S, D], a head's rows side by side (reason in `jaxspec.core.cache`).
      length: int32 [B].
    """

    k: jax.Array
    v: jax.Array
    length: jax.Array


class Candidates(flax.struct.PyTreeNode):
    """What a block drafter proposes: a ranked list per depth, the same under every parent of that
    depth.

    Attributes:
      token: int32 [B, depth, C], best first.
      logprob: float32 [B, depth, C], non-increasing over C; -inf marks a candidate that must not be
        used.
      entropy: float32 [B, depth], nats, of the distributions that the log-probabilities are of;
        None where no builder reads it.
    """

    token: jax.Array
    logprob: jax.Array
    entropy: jax.Array | None = None


class Nodes(flax.struct.PyTreeNode):
    """Nodes of the growing tree that are drafted from in one step.

    Attributes:
      token: int32 [B, M].
      source: int32 [B, M], index of the slot that proposed the node, counting slots in the order
        that they were computed: the root's K come first, then M * K of every later step.
      depth: int32 [B, M]; the root's is 0.
      node: int32 [B, M], index in the builder's pool, -1 for the root.
      live: bool [B, M]; what is proposed after the others is not looked at.
      before: int32 [B, M, K - 1], tokens between the node and the one it was proposed after, where
        nodes are at the ends of blocks and the builder does not always take the best ones; else
        None.
    """

    token: jax.Array
    source: jax.Array
    depth: jax.Array
    node: jax.Array
    live: jax.Array
    before: jax.Array | None = None


class Pool(flax.struct.PyTreeNode):
    """P candidate nodes of a growing tree; parents stand before their children. Builders handle one
    tree, without the B.

    Attributes:
      token: int32 [B, P]. parent: int32 [B, P], index in the pool, -1 below the root. depth: int32
        [B, P], from 1.
      logprob: float32 [B, P], of the path; -inf marks a node that is not there.
    """

    token: jax.Array
    parent: jax.Array
    depth: jax.Array
    logprob: jax.Array


class Tree(flax.struct.PyTreeNode):
    """A draft tree of N rows; row 0 is the root, the last committed token.

    Rows are in non-increasing path score (the log-probability, unless the builder was given another
    score) with parents before children, so that every prefix of the rows is a valid tree. Rows at
    or beyond `size` are padding: they see only themselves and are never accepted.

    Attributes:
      token: int32 [B, N].
      parent: int32 [B, N]; the root's is -1.
      depth: int32 [B, N]; the root's is 0.
      ancestors: uint32 [B, N, W]; bit j of row i is set when j is i or an ancestor of i.
      logprob: float32 [B, N], cumulative drafter log-probability of the path; the root's is 0,
        padding is -inf.
      size: int32 [B], rows in use, the root included.
    """

    token: jax.Array
    parent: jax.Array
    depth: jax.Array
    ancestors: jax.Array
    logprob: jax.Array
    size: jax.Array


class Accepted(flax.struct.PyTreeNode):
    """Outcome of verifying a tree.

    Attributes:
      path: int32 [B, A], accepted rows from the root on; entries at or beyond `count` are 0.
      count: int32 [B], rows on the path, the root included: the tokens this round commits, bonus
        included.
      bonus: int32 [B], the target's own token after the path; the next round's root.
    """

    path: jax.Array
    count: jax.Array
    bonus: jax.Array


class Request(flax.struct.PyTreeNode):
    """What the caller asked for: read by every round, never written.

    Attributes:
      limit: int32 [B], tokens to generate at most.
      stop: int32 [E], token ids that end a sequence; -1 entries are padding.
      keys: PRNG keys [B], one per sequence, for draft-invariant sampling.
      sampling: traced values of temperature, top-k, top-p and min-p.
      controls: what a policy reads; None without one.
    """

    limit: jax.Array
    stop: jax.Array
    keys: jax.Array
    sampling: Any
    controls: Any = None


class DecodeState(flax.struct.PyTreeNode):
    """The carry of the decode loop, donated from call to call.

    Attributes:
      tokens: int32 [B, M], generated tokens; entries at or beyond `emitted` are garbage.
      emitted: int32 [B].
      done: bool [B]; a finished sequence changes no more.
      root: int32 [B], the last committed token, whose keys and values are not cached yet.
      cache: the target's KVCache.
      draft: the drafter's state, or None.
      rounds: int32 [B].
      round_emitted: int32 [B, M], tokens emitted in each round (bonus included); all acceptance
        figures derive from it.
      round_drafted: int32 [B, M], drafted nodes verified in each round, the root not counted.
      tree, accepted: the last round's, for traces.
      control: the policy's state; None without one.
      block: int32 [B], slots of a block as a policy wants them, the anchor included; None: all.
      pending: what rounds without drafting committed and the drafter has not absorbed, a
        `jaxspec.drafters.base.Committed`; None where every round drafts.
      round_steps: int32 [B, M], draft steps of each round after the root's, -1 where it did not
        draft; None without a policy.
    """

    tokens: jax.Array
    emitted: jax.Array
    done: jax.Array
    root: jax.Array
    cache: KVCache
    draft: Any
    rounds: jax.Array
    round_emitted: jax.Array
    round_drafted: jax.Array
    tree: Tree
    accepted: Accepted
    control: Any = None
    block: jax.Array | None = None
    pending: Any = None
    round_steps: jax.Array | None = None
