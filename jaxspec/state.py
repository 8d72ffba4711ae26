"""The pytrees of the decode loop. Shapes are documented here, once.

B sequences, N tree rows, W = ceil(N / 32) mask words, L layers, S cache capacity, K kv heads, D head dim, C candidates per
depth, A = longest path + bonus.
"""

from __future__ import annotations

import flax.struct
import jax


@flax.struct.dataclass
class KVCache:
    """Keys and values of the committed tokens. Rows at or beyond `length` are masked, never read.

    Attributes:
      k, v: [L, B, S, K, D].
      length: int32 [B].
    """

    k: jax.Array
    v: jax.Array
    length: jax.Array


@flax.struct.dataclass
class Candidates:
    """What a block drafter proposes: a ranked list per depth, the same under every parent of that depth.

    Attributes:
      token: int32 [B, depth, C], best first.
      logprob: float32 [B, depth, C], non-increasing over C; -inf marks a candidate that must not be used.
    """

    token: jax.Array
    logprob: jax.Array


@flax.struct.dataclass
class Tree:
    """A draft tree of N rows; row 0 is the root, the last committed token.

    Rows are in non-increasing path score with parents before children, so that every prefix of the rows is a valid tree.
    Rows at or beyond `size` are padding: they see only themselves and are never accepted.

    Attributes:
      token: int32 [B, N].
      parent: int32 [B, N]; the root's is -1.
      depth: int32 [B, N]; the root's is 0.
      ancestors: uint32 [B, N, W]; bit j of row i is set when j is i or an ancestor of i.
      logprob: float32 [B, N], cumulative drafter log-probability of the path; the root's is 0, padding is -inf.
      size: int32 [B], rows in use, the root included.
    """

    token: jax.Array
    parent: jax.Array
    depth: jax.Array
    ancestors: jax.Array
    logprob: jax.Array
    size: jax.Array


@flax.struct.dataclass
class Accepted:
    """Outcome of verifying a tree.

    Attributes:
      path: int32 [B, A], accepted rows from the root on; entries at or beyond `count` are 0.
      count: int32 [B], rows on the path, the root included: the tokens this round commits, bonus included.
      bonus: int32 [B], the target's own token after the path; the next round's root.
    """

    path: jax.Array
    count: jax.Array
    bonus: jax.Array
