"""Accept each child with the probability that the target gives it."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from jaxspec.acceptance.match import follow
from jaxspec.acceptance.path import accept_path, find_children, find_siblings, keep_some, walk_tree
from jaxspec.core.sampling.sampling import process
from jaxspec.core.sampling.settings import SamplingSpec, SamplingValues
from jaxspec.core.state import Accepted, Tree


def accept_sequential(
    tree: Tree,
    logits: jax.Array,
    spec: SamplingSpec,
    values: SamplingValues,
    keys: jax.Array,
    position: jax.Array,
    longest: int,
) -> Accepted:
    """Try the children of an accepted node in row order as point-mass proposals.

    This is EAGLE's rule, from its released code. Child c is accepted with its probability p(c).
    Otherwise p(c) becomes 0, p is renormalised and the next child is tried. If no child is
    accepted, the bonus is drawn from the remaining p. A repeated sibling is skipped, so the first
    one wins. The rule is lossless for every tree that does not depend on the noise used here.
    Greedy decoding uses `accept_match`.

    Args:
      tree: tree of N rows.
      logits: [B, N, V], the target's unprocessed logits.
      spec, values: from `make_sampling`.
      keys: [B], one per sequence.
      position: int32 [B], absolute position of the root.
      longest: static; deeper nodes are not accepted.
    """
    how: dict[str, Any] = {"spec": spec, "values": values, "longest": longest}
    walk, choose = (
        functools.partial(walk_sequential, **how),
        functools.partial(choose_in_sequence, **how),
    )
    return accept_path(walk, choose, tree, logits, spec, values, keys, position, longest)


def walk_sequential(
    tree: Tree,
    logits: jax.Array,
    draws: jax.Array,
    *,
    spec: SamplingSpec,
    values: SamplingValues,
    longest: int,
) -> tuple[Accepted, jax.Array]:
    """Apply `accept_sequential` to one tree, without the bonus; `draws` float32 [N] are uniform."""
    rows = jnp.arange(tree.token.shape[0])
    same = (
        (tree.parent[:, None] == tree.parent)
        & (tree.token[:, None] == tree.token)
        & (rows < rows[:, None])
    )
    repeated = same.any(-1)

    def descend(
        row: jax.Array, depth: jax.Array, p: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        child = find_children(tree, row, depth, longest) & ~repeated
        mass = jnp.where(child, p[tree.token], 0.0)
        # Test u < p(c) / (1 - mass of the children rejected before c) for all children at once.
        hit = child & (draws * (1.0 - (jnp.cumsum(mass) - mass)) < mass)
        left = p.at[jnp.where(child, tree.token, p.shape[0])].set(0.0, mode="drop")
        return hit.any(), jnp.argmax(hit).astype(jnp.int32), left

    return walk_tree(logits, spec, values, longest, descend)


def choose_in_sequence(
    tree: Tree,
    logits: jax.Array,
    draws: jax.Array,
    *,
    spec: SamplingSpec,
    values: SamplingValues,
    longest: int,
) -> tuple[Accepted, jax.Array]:
    """Apply the rule of `walk_sequential` at all rows of the tree at once."""
    child, elder = find_siblings(tree, longest)
    repeated = (elder & (tree.token[:, None] == tree.token)).any(-1)
    child, elder = child & ~repeated, elder & ~repeated
    p = jax.nn.softmax(process(logits, spec, values), axis=-1)
    mass = jnp.where(child, p[jnp.maximum(tree.parent, 0), tree.token], 0.0)
    # Test u < p(c) / (1 - mass of the children rejected before c) for all children at once.
    hit = child & (draws * (1.0 - jnp.where(elder, mass, 0.0).sum(-1)) < mass)
    path, count, last = follow(tree, hit & ~(elder & hit).any(-1), longest)
    rejected = jnp.where(child & (tree.parent == last), tree.token, logits.shape[-1])
    left = p[last].at[rejected].set(0.0, mode="drop")
    return Accepted(path=path, count=count, bonus=jnp.int32(0)), keep_some(left, p[last])
