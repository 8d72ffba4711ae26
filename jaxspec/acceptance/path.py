"""Accept a path of a tree by a rule in which every node has one child to accept, or none.

A GPU lets all nodes choose at once, on the path or not, so that the number of kernels depends on no
data. A CPU walks down the tree from the root, child by child, and reads only the rows of the path.
Both accept the same rows. The rules draw noise of their own, not the shared Gumbel noise.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from jaxspec.acceptance.match import accept_match
from jaxspec.core.sampling.noise import fold_in, gumbel, uniform
from jaxspec.core.sampling.sampling import argmax, draw, process
from jaxspec.core.sampling.settings import SamplingSpec, SamplingValues
from jaxspec.core.state import Accepted, Tree

# Folded into a sequence's key. Positions are below 2^31, so none of these is the key of a
# position's Gumbel noise.
ACCEPT, BONUS, CANDIDATES = 0xFFFFFF01, 0xFFFFFF02, 0xFFFFFF03


def fold_round_keys(keys: jax.Array, position: jax.Array, purpose: int) -> jax.Array:
    """Fold a purpose and the round's position into each key; no two rounds get equal keys.

    Args:
      keys: [B], one per sequence.
      position: int32 [B], absolute position of the root; it differs between the rounds of a
        sequence.
      purpose: `ACCEPT`, `BONUS` or `CANDIDATES`.

    Returns:
      Keys [B].
    """
    return fold_in(fold_in(keys, jnp.uint32(purpose)), position)


def draw_uniform(keys: jax.Array, position: jax.Array, tree: Tree) -> jax.Array:
    """Draw a uniform number per tree row, float32 [B, N], to decide whether the row is accepted."""
    return uniform(fold_round_keys(keys, position, ACCEPT), tree.token.shape[1])


def draw_bonus(probability: jax.Array, keys: jax.Array, position: jax.Array) -> jax.Array:
    """Draw a token, int32 [B], from `probability` [B, V], normalised or not."""
    noise = gumbel(
        fold_round_keys(keys, position, BONUS),
        jnp.zeros((position.shape[0], 1), jnp.int32),
        probability.shape[-1],
    )
    return argmax(jnp.log(probability) + noise[:, 0])


def accept_path(
    walk: Callable[..., tuple[Accepted, jax.Array]],
    choose: Callable[..., tuple[Accepted, jax.Array]],
    tree: Tree,
    logits: jax.Array,
    spec: SamplingSpec,
    values: SamplingValues,
    keys: jax.Array,
    position: jax.Array,
    longest: int,
    *per_tree: jax.Array,
) -> Accepted:
    """Accept by a rule, and draw the bonus from what the last node's rejections leave.

    Greedy decoding uses `accept_match`. The other arguments are those of the rules.

    Args:
      walk, choose: the rule for a CPU and for other devices. Both take one tree, its logits [N, V],
        uniform draws float32 [N] and its `per_tree`, and return Accepted without a bonus and the
        distribution float32 [V] of the bonus.
      per_tree: further arrays of the rule, each with a leading axis of B trees.
    """
    if spec.greedy:
        return accept_match(tree, draw(logits, None, tree.depth, spec, values), longest)
    draws = draw_uniform(keys, position, tree)
    accepted, left = jax.lax.platform_dependent(
        tree, logits, draws, *per_tree, cpu=jax.vmap(walk), default=jax.vmap(choose)
    )
    return accepted.replace(bonus=draw_bonus(left, keys, position))


def find_siblings(tree: Tree, longest: int) -> tuple[jax.Array, jax.Array]:
    """Find the rows of one tree that may be accepted, and their elder siblings.

    Returns:
      child: bool [N], rows other than the root, in use and no deeper than `longest`.
      elder: bool [N, N], whether row j is a child, a sibling of row i and before it.
    """
    row = jnp.arange(tree.token.shape[0])
    child = (row > 0) & (row < tree.size) & (tree.depth <= longest)
    same = tree.parent[:, None] == tree.parent
    return child, same & child & (row < row[:, None])


def keep_some(left: jax.Array, p: jax.Array) -> jax.Array:
    """Return what is `left` of p [V] after rejections, or p itself if nothing is.

    Rounding can make all of the remaining p zero although every child was rejected. A token drawn
    from p has a probability above 0.
    """
    return jnp.where(left.any(), left, p)


# (row, depth, p [V]) -> (found, child row, the remaining p if no child is accepted).
Descend = Callable[[jax.Array, jax.Array, jax.Array], tuple[jax.Array, jax.Array, jax.Array]]


def walk_tree(
    logits: jax.Array, spec: SamplingSpec, values: SamplingValues, longest: int, descend: Descend
) -> tuple[Accepted, jax.Array]:
    """Walk down one tree from the root as long as `descend(row, depth, p)` finds a child.

    One row of logits is processed at a time.

    Args:
      logits: [N, V], the target's unprocessed logits.
      spec, values: from `make_sampling`.
      longest: static; the length of the longest path.
      descend: returns (found, child row, the remaining p if no child is accepted), where p float32
        [V] is the processed distribution after `row`.

    Returns:
      Accepted without a bonus, and the distribution float32 [V] to draw the bonus from.
    """

    def step(state: tuple) -> tuple:
        row, count, path, _, _ = state
        p = jax.nn.softmax(process(logits[row], spec, values))
        found, child, left = descend(row, count - 1, p)
        left = keep_some(left, p)
        path = path.at[count].set(jnp.where(found, child, 0), mode="drop")
        return jnp.where(found, child, row), count + found, path, left, ~found

    start = (
        jnp.int32(0),
        jnp.int32(1),
        jnp.zeros(longest + 1, jnp.int32),
        jnp.zeros(logits.shape[-1]),
        jnp.bool_(False),
    )
    _, count, path, left, _ = lax.while_loop(lambda state: ~state[-1], step, start)
    return Accepted(path=path, count=count, bonus=jnp.int32(0)), left


def find_children(tree: Tree, row: jax.Array, depth: jax.Array, longest: int) -> jax.Array:
    """Mark the children of `row` that may be accepted, bool [N]; `depth` is the depth of `row`."""
    rows = jnp.arange(tree.token.shape[0])
    return (tree.parent == row) & (rows > 0) & (rows < tree.size) & (depth < longest)
