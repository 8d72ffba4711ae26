"""Accept a path of a tree by a rule in which every node has one child to accept, or none.

A GPU lets all nodes choose at once, on the path or not, so that the number of kernels depends on no
data. A CPU walks down the tree and reads few rows, see `walk`. Both accept the same rows.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxspec.acceptance.match import accept_match
from jaxspec.acceptance.noise import draw_bonus, draw_uniform
from jaxspec.core.sampling.sampling import draw
from jaxspec.core.sampling.settings import SamplingSpec, SamplingValues
from jaxspec.core.state import Accepted, Tree


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
