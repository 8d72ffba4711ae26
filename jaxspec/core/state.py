"""The pytrees of the decode loop. Shapes are documented here, once.

B sequences, N tree rows, W = ceil(N / 32) mask words, L layers, S cache capacity, K kv heads, D
head dim, C candidates per depth, A = longest path + bonus, M nodes that a step drafts from.

Keys and values of layers with other sizes lie in other arrays: they are tuples of one array for
each `jaxspec.core.config.CacheGroup`, in which L, K and D are the group's, and values have its own
D.
"""

from __future__ import annotations

from typing import Any

import flax.struct
import jax
import numpy as np


class RecurrentState(flax.struct.PyTreeNode):
    """What recurrent layers keep of the committed tokens, however many these are.

    A lower length does not take tokens back out of it, see `jaxspec.core.recurrent`.

    Attributes:
      conv: [L, B, w - 1, C], the last rows that went into the convolution, oldest first.
      s: float32 [L, B, Hv, dk, dv].
    """

    conv: jax.Array
    s: jax.Array


class KVCache(flax.struct.PyTreeNode):
    """Keys and values of the committed tokens. Rows at or beyond `length` are masked.

    Attributes:
      k, v: of each group [L, B, K, S, D]; the rows of a head are contiguous (see
        `jaxspec.core.cache`).
      length: int32 [B].
      recurrent: states of each `jaxspec.core.config.RecurrentGroup`.
    """

    k: tuple[jax.Array, ...]
    v: tuple[jax.Array, ...]
    length: jax.Array
    recurrent: tuple[RecurrentState, ...] = ()

    @property
    def batch(self) -> int:
        """Return B."""
        return self.k[0].shape[1]

    @property
    def capacity(self) -> int:
        """Return S."""
        return self.k[0].shape[3]

    def prefix(self, layer: int, first: jax.Array | None = None, group: int = 0) -> tuple:
        """Return what attention of layer `layer` of a group reads, see
        `pallas_kernels.reference.tree_attention`.
        """
        return self.k[group], self.v[group], layer, self.length, first


class Candidates(flax.struct.PyTreeNode):
    """A block drafter's proposal: a ranked list per depth, the same under every parent there.

    Attributes:
      token: int32 [B, depth, C], best first.
      logprob: float32 [B, depth, C], non-increasing over C; -inf marks a candidate that must not be
        used.
      entropy: float32 [B, depth], entropy in nats of the draft distribution at each depth; None if
        the builder does not read it.
    """

    token: jax.Array
    logprob: jax.Array
    entropy: jax.Array | None = None


class Nodes(flax.struct.PyTreeNode):
    """Nodes of the growing tree that one step drafts from.

    Attributes:
      token: int32 [B, M].
      source: int32 [B, M], index of the slot that proposed the node. Slots are counted in the order
        in which they were computed: first the root's K, then M * K per later step.
      depth: int32 [B, M]; the root's is 0.
      node: int32 [B, M], index in the builder's pool, -1 for the root.
      live: bool [B, M]; proposals under other nodes are ignored.
      before: int32 [B, M, K - 1], tokens between the node and the one it was proposed after, for
        drafters that draft from the ends of blocks and builders that do not always take the best
        candidates; else None.
    """

    token: jax.Array
    source: jax.Array
    depth: jax.Array
    node: jax.Array
    live: jax.Array
    before: jax.Array | None = None


class Pool(flax.struct.PyTreeNode):
    """P candidate nodes of a growing tree; parents come before their children.

    Builders take one tree, without the batch axis B.

    Attributes:
      token: int32 [B, P].
      parent: int32 [B, P], index in the pool, -1 below the root.
      depth: int32 [B, P], from 1.
      logprob: float32 [B, P], log-probability of the path; -inf marks an empty entry.
    """

    token: jax.Array
    parent: jax.Array
    depth: jax.Array
    logprob: jax.Array


class Tree(flax.struct.PyTreeNode):
    """A draft tree of N rows; row 0 is the root, the last committed token.

    Rows are sorted by path score (the log-probability, unless the builder was given another score),
    best first, with parents before children. Every prefix of the rows is therefore a valid tree.
    Rows at or beyond `size` are padding: they see only themselves and are never accepted.

    Attributes:
      token: int32 [B, N].
      parent: int32 [B, N]; the root's is -1.
      depth: int32 [B, N]; the root's is 0.
      ancestors: uint32 [B, N, W]; bit j of row i is set if j is i or an ancestor of i.
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
      count: int32 [B], rows on the path, the root included. This is also the number of tokens that
        the round commits, the bonus included.
      bonus: int32 [B], the target's own token after the path, and the next round's root.
    """

    path: jax.Array
    count: jax.Array
    bonus: jax.Array


class Request(flax.struct.PyTreeNode):
    """The caller's request: every round reads it, none writes it.

    Arrays may be NumPy's, which take no program to make.

    Attributes:
      limit: int32 [B], maximum number of tokens to generate.
      stop: int32 [E], or [B, E], token ids that end a sequence; -1 entries are padding.
      seed: int [] or [B], of draft-invariant sampling; programs read its low 32 bits, or all with
        64-bit types on.
      sequence: uint32 [B], number of each sequence, which keys its noise.
      sampling: `jaxspec.core.sampling.settings.SamplingValues`.
      controls: traced values that a policy reads; None without a policy.
      stop_from: int32 [B], generated tokens before which none of `stop` and no end token of the
        model may be drawn; None: 0.
      deepest: int32 [B], longest path to draft, 0 for autoregressive sequences; None: no limit.
    """

    limit: jax.Array | np.ndarray
    stop: jax.Array | np.ndarray
    seed: jax.Array | np.ndarray
    sequence: jax.Array | np.ndarray
    sampling: Any
    controls: Any = None
    stop_from: jax.Array | np.ndarray | None = None
    deepest: jax.Array | None = None


class DecodeState(flax.struct.PyTreeNode):
    """The carry of the decode loop. Each call donates it.

    Attributes:
      tokens: int32 [B, M], generated tokens; entries at or beyond `emitted` are garbage.
      emitted: int32 [B].
      done: bool [B]; a finished sequence no longer changes.
      root: int32 [B], the last committed token; its keys and values are not cached yet.
      cache: the target's KVCache.
      draft: the drafter's state, or None.
      rounds: int32 [B].
      round_emitted: int32 [B, M], tokens emitted in each round, the bonus included. All acceptance
        figures derive from it.
      round_drafted: int32 [B, M], drafted nodes verified in each round, the root not counted.
      tree, accepted: of the last round, for traces.
      control: the policy's state; None without a policy.
      block: int32 [B], slots per block that the policy asks for, the anchor included; None for all.
      pending: tokens that rounds without drafting committed and the drafter has not absorbed, a
        `jaxspec.drafters.base.Committed`; None if every round drafts.
      round_steps: int32 [B, M], draft steps of each round after the root's, -1 for a round that did
        not draft; None without a policy.
      evidence: a `jaxspec.round.evidence.Evidence`; None if the call gathers none.
      counts: int32 [B, V], how often each token is in the text, see
        `jaxspec.core.sampling.penalties`; None without penalties.
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
    evidence: Any = None
    counts: jax.Array | None = None
