"""Accept the drafted tokens that equal those the target drew."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from jaxspec.core.state import Accepted, Tree

_WORD = 32


def accept_match(tree: Tree, target_token: jax.Array, longest: int) -> Accepted:
    """Accept a node if its parent is accepted and its token is the one that the target drew there.

    Among siblings with the same token the last row wins, as in the child maps of DDTree and
    JetSpec.

    Args:
      tree: tree of N rows.
      target_token: int32 [B, N], the target's token after each row (`sampling.draw`).
      longest: static; deeper nodes are not accepted.

    Returns:
      Accepted with A = longest + 1; the bonus is the target's token after the last accepted row.
    """
    rows = tree.token.shape[1]
    row = jnp.arange(rows)
    match = tree.token == jnp.take_along_axis(target_token, jnp.maximum(tree.parent, 0), axis=1)
    match &= (row > 0) & (row < tree.size[:, None]) & (tree.depth <= longest)
    # Matching siblings all hold their parent's token, so comparing parents is enough to find
    # duplicates.
    later = (
        (tree.parent[:, :, None] == tree.parent[:, None, :])
        & match[:, None, :]
        & (row > row[:, None])
    )
    path, count, last = jax.vmap(functools.partial(follow, longest=longest))(
        tree, match & ~later.any(-1)
    )
    bonus = jnp.take_along_axis(target_token, last[:, None], axis=1)[:, 0]
    return Accepted(path=path, count=count, bonus=bonus.astype(jnp.int32))


def follow(tree: Tree, chosen: jax.Array, longest: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Follow the chosen children of one tree from the root.

    Args:
      chosen: bool [N], at most one child of each row, none deeper than `longest`.

    Returns:
      The path int32 [longest + 1] with 0 behind its end, its rows int32 [], and its last row.
    """
    row = jnp.arange(tree.token.shape[0])
    missed = _pack_bits(~chosen & (row > 0), tree.ancestors.shape[-1])
    accepted = ((tree.ancestors & missed) == 0).all(-1)
    # At most one row of a depth is accepted, so a path is a reduction over rows rather than a walk.
    at = accepted & (tree.depth == jnp.arange(longest + 1)[:, None])
    path = jnp.where(at, row, 0).max(-1).astype(jnp.int32)
    return path, accepted.sum(dtype=jnp.int32), jnp.where(accepted, row, 0).max()


def _pack_bits(bits: jax.Array, words: int) -> jax.Array:
    """Pack bool [N] into uint32 [W]: column j is bit j % 32 of word j // 32."""
    bits = jnp.pad(bits, (0, words * _WORD - bits.shape[0])).reshape(words, _WORD)
    return (bits.astype(jnp.uint32) << jnp.arange(_WORD, dtype=jnp.uint32)).sum(
        -1, dtype=jnp.uint32
    )
