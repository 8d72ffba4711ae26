"""Walk down a tree from the root, child by child; each rule chooses the child in its own way.

A CPU reads only the rows of the path. A GPU lets all rows choose at once, see `path`.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from jaxspec.acceptance.path import keep_some
from jaxspec.core.sampling.sampling import process
from jaxspec.core.sampling.settings import SamplingSpec, SamplingValues
from jaxspec.core.state import Accepted, Tree

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
