"""Draft trees as arrays: masks, assembly from rows, prefixes, and checks.

Functions on arrays without a batch axis take one tree and are meant to be vmapped. Functions on
`jaxspec.core.state.Tree` take a batch. N rows, W = ceil(N / 32) mask words, B sequences.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.core.state import Tree

WORD = 32


def mask_words(rows: int) -> int:
    """Return the number of words W of a mask over `rows` columns."""
    return -(-rows // WORD)


def self_words(rows: int) -> np.ndarray:
    """Return the mask uint32 [N, W] under which every row sees only itself."""
    return _pack(np.eye(rows, dtype=bool))


def chain_words(rows: int) -> np.ndarray:
    """Return the mask uint32 [N, W] of a chain: row i sees rows 0..i."""
    return _pack(np.tri(rows, dtype=bool))


def _pack(mask: np.ndarray) -> np.ndarray:
    """Pack bool [N, N] into uint32 [N, W]."""
    rows = len(mask)
    padded = np.zeros((rows, mask_words(rows), WORD), np.uint64)
    padded.reshape(rows, -1)[:, :rows] = mask
    return (padded << np.arange(WORD, dtype=np.uint64)).sum(-1).astype(np.uint32)


def ancestor_words(parent: jax.Array, max_depth: int | None = None) -> jax.Array:
    """Compute the mask of one tree by pointer doubling.

    Bit j of row i is set if j is i or an ancestor of i.

    Args:
      parent: int32 [N]; parents come before children and the root's entry is negative.
      max_depth: static bound on the depth (default: N - 1). The loop takes `max_depth.bit_length()`
        rounds.

    Returns:
      uint32 [N, W].
    """
    rows = parent.shape[0]
    words, jump = jnp.asarray(self_words(rows)), jnp.maximum(parent, 0)
    # After round r, a row holds its 2^r nearest ancestors, itself included. `jump` points at the
    # next one.
    for _ in range((rows - 1 if max_depth is None else max_depth).bit_length()):
        words, jump = words | words[jump], jump[jump]
    return words


def assemble(
    token: jax.Array,
    parent: jax.Array,
    depth: jax.Array,
    logprob: jax.Array,
    size: jax.Array,
    *,
    max_depth: int | None = None,
    words: jax.Array | np.ndarray | None = None,
) -> Tree:
    """Assemble one tree (no batch axis) from sorted rows, and make padding harmless.

    Args:
      token, parent, depth: int32 [N]; row 0 is the root and `parent[0]` is -1.
      logprob: float32 [N], non-increasing.
      size: int32 [], rows in use. The others are overwritten with token, parent and depth 0,
        log-probability -inf, and a mask of themselves only.
      max_depth: static bound on the depth, see `ancestor_words`.
      words: the mask uint32 [N, W], if it is known already.
    """
    rows = token.shape[0]
    live = jnp.arange(rows) < size
    words = ancestor_words(parent, max_depth) if words is None else words
    return Tree(
        token=jnp.where(live, token, 0),
        parent=jnp.where(live, parent, 0),
        depth=jnp.where(live, depth, 0),
        ancestors=jnp.where(live[:, None], words, self_words(rows)),
        logprob=jnp.where(live, logprob, -jnp.inf),
        size=size,
    )


def root_only(root: jax.Array, rows: int) -> Tree:
    """Make a batched tree of `rows` rows that holds only its root int32 [B]."""
    shape, first = (root.shape[0], rows), jnp.arange(rows) == 0
    logprob = jnp.where(first, jnp.float32(0.0), -jnp.inf)
    return Tree(
        token=jnp.where(first, root[:, None], 0),
        parent=jnp.broadcast_to(-first.astype(jnp.int32), shape),
        depth=jnp.zeros(shape, jnp.int32),
        ancestors=jnp.broadcast_to(self_words(rows), (*shape, mask_words(rows))),
        logprob=jnp.broadcast_to(logprob, shape),
        size=jnp.ones(root.shape[0], jnp.int32),
    )


def parent_rows(order: jax.Array, parent: jax.Array) -> jax.Array:
    """Find the rows of parents after sorting: the index in `order` of each kept node's parent.

    Args:
      order: int32 [N], node ids in row order, the root's first.
      parent: int32 [N], the id of each row's parent; the root's matches no id.

    Returns:
      int32 [N], -1 for the root. The comparison is N x N, which is cheaper on a GPU than inverting
      the order with a scatter.
    """
    rows = jnp.argmax(parent[:, None] == order[None, :], axis=1).astype(jnp.int32)
    return jnp.where(jnp.arange(rows.shape[0]) == 0, -1, rows)


def take_rows(tree: Tree, rows: int) -> Tree:
    """Take the first `rows` (static) rows of a batched tree.

    The result is a valid tree, because rows are sorted by score.
    """
    return Tree(
        token=tree.token[:, :rows],
        parent=tree.parent[:, :rows],
        depth=tree.depth[:, :rows],
        ancestors=tree.ancestors[:, :rows, : mask_words(rows)],
        logprob=tree.logprob[:, :rows],
        size=jnp.minimum(tree.size, rows),
    )


def pad_rows(tree: Tree, rows: int) -> Tree:
    """Pad a batched tree to `rows` (static) rows; it must not have more."""
    have = tree.token.shape[1]
    more = root_only(tree.token[:, 0], rows)

    def extend(field, padding):
        return jnp.concatenate([field, padding[:, have:]], axis=1)

    words = jnp.pad(tree.ancestors, ((0, 0), (0, 0), (0, mask_words(rows) - mask_words(have))))
    return Tree(
        token=extend(tree.token, more.token),
        parent=extend(tree.parent, more.parent),
        depth=extend(tree.depth, more.depth),
        ancestors=extend(words, more.ancestors),
        logprob=extend(tree.logprob, more.logprob),
        size=tree.size,
    )


def keep_rows(tree: Tree, count: jax.Array) -> Tree:
    """Keep the first `count` int32 [B] rows (at least 1) of each tree and make the others padding.

    This limits a tree to a budget that is traced, so it does not change shapes.
    """
    size = jnp.minimum(tree.size, jnp.maximum(count, 1))
    rows = tree.token.shape[1]
    live = jnp.arange(rows) < size[:, None]
    return Tree(
        token=jnp.where(live, tree.token, 0),
        parent=jnp.where(live, tree.parent, 0),
        depth=jnp.where(live, tree.depth, 0),
        ancestors=jnp.where(live[..., None], tree.ancestors, self_words(rows)),
        logprob=jnp.where(live, tree.logprob, -jnp.inf),
        size=size,
    )


def validate(tree: Tree, score: np.ndarray | None = None) -> None:
    """Check every tree of a batch on the host.

    Args:
      tree: batched tree.
      score: float [B, N], the score that rows are sorted by (default: `tree.logprob`).

    Raises:
      ValueError: says which tree is wrong, in which row and how.
    """
    tree = jax.tree.map(np.asarray, tree)
    scores = np.asarray(tree.logprob if score is None else score)
    for b in range(tree.token.shape[0]):
        problem = _find_problem(jax.tree.map(lambda x, b=b: x[b], tree), scores[b])
        if problem:
            raise ValueError(f"tree {b}: {problem}")


def _find_problem(tree: Tree, score: np.ndarray) -> str | None:
    rows, size = len(tree.token), int(tree.size)
    if not 1 <= size <= rows:
        return f"size {size} is not in 1..{rows}"
    if tree.parent[0] != -1 or tree.depth[0] != 0 or tree.logprob[0] != 0:
        return "row 0 is not a root: parent -1, depth 0, log-probability 0"
    expected = np.eye(rows, dtype=bool)
    children = set()
    for i in range(1, size):
        parent = int(tree.parent[i])
        if not 0 <= parent < i:
            return f"row {i} has parent {parent}: parents come before children"
        if tree.depth[i] != tree.depth[parent] + 1:
            return f"row {i} has depth {tree.depth[i]}, its parent {tree.depth[parent]}"
        if not score[i] <= score[i - 1]:
            return f"row {i} scores {score[i]}, above the row before it"
        if (parent, int(tree.token[i])) in children:
            return f"row {i} repeats token {tree.token[i]} under row {parent}"
        children.add((parent, int(tree.token[i])))
        expected[i] |= expected[parent]
    wrong = np.flatnonzero((_pack(expected) != tree.ancestors).any(-1))
    if wrong.size:
        return f"the mask of row {wrong[0]} is not itself and its ancestors"
    padding = (
        (tree.token[size:] != 0)
        | (tree.parent[size:] != 0)
        | (tree.depth[size:] != 0)
        | np.isfinite(tree.logprob[size:])
    )
    if padding.any():
        return "padding rows must hold token, parent and depth 0 and log-probability -inf"
    return None
