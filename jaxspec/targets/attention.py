"""Entry points of `pallas_kernels`: attention of new rows over a cached prefix and each other."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pallas_kernels.registry import Problem, resolve_kernel


def attend(q, k, v, positions, *, mask=None, prefix=None, window=None) -> jax.Array:
    """Compute `pallas_kernels.reference.tree_attention` with the implementation of the registry."""
    problem = Problem.of(q, k, v, prefix)
    return resolve_kernel("tree_attention", problem)(
        q, k, v, positions, mask=mask, prefix=prefix, window=window
    )


def full_mask(batch: int, rows: int, size: jax.Array | None = None) -> jax.Array:
    """Make mask words uint32 [B, T, W] under which every new row sees every new row.

    Args:
      batch: B.
      rows: T.
      size: int32 [B]; if given, only the first `size` rows are seen.
    """
    words = -(-rows // 32)
    if size is None:
        return jnp.full((batch, rows, words), 0xFFFFFFFF, jnp.uint32)
    bits = jnp.clip(size[:, None] - 32 * jnp.arange(words), 0, 32).astype(jnp.uint32)
    # A shift by all 32 bits is not defined.
    word = jnp.where(bits == 32, jnp.uint32(0xFFFFFFFF), (jnp.uint32(1) << (bits % 32)) - 1)
    return jnp.broadcast_to(word[:, None], (batch, rows, words))
