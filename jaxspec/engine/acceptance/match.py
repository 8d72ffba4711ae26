"""Accept the drafted tokens that equal those the target drew."""

from __future__ import annotations

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
    match = (match & ~later.any(-1)) | (row == 0)
    missed = _pack_bits(~match, tree.ancestors.shape[-1])
    accepted = ((tree.ancestors & missed[:, None, :]) == 0).all(-1)
    # At most one row of a depth is accepted, so a path is a reduction over rows rather than a walk.
    at = accepted[:, None, :] & (tree.depth[:, None, :] == jnp.arange(longest + 1)[:, None])
    path = jnp.where(at, row, 0).max(-1).astype(jnp.int32)
    last = jnp.where(accepted, row, 0).max(-1)
    bonus = jnp.take_along_axis(target_token, last[:, None], axis=1)[:, 0]
    return Accepted(
        path=path, count=accepted.sum(-1, dtype=jnp.int32), bonus=bonus.astype(jnp.int32)
    )


def _pack_bits(bits: jax.Array, words: int) -> jax.Array:
    """Pack bool [B, N] into uint32 [B, W]: column j is bit j % 32 of word j // 32."""
    bits = jnp.pad(bits, ((0, 0), (0, words * _WORD - bits.shape[1])))
    bits = bits.reshape(bits.shape[0], words, _WORD).astype(jnp.uint32)
    return (bits << jnp.arange(_WORD, dtype=jnp.uint32)).sum(-1, dtype=jnp.uint32)
