"""Attention of new rows over (cached prefix + visible new rows): entry points over
`pallas_kernels`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pallas_kernels.registry import Problem, resolve


def tree_attention(q, k, v, positions, *, mask=None, prefix=None, window=None) -> jax.Array:
    """See `pallas_kernels.reference.tree_attention`; `pallas_kernels.registry` chooses what
    computes it.
    """
    problem = Problem.of(q, k, v, prefix)
    return resolve("tree_attention", problem)(
        q, k, v, positions, mask=mask, prefix=prefix, window=window
    )


def full_mask(batch: int, rows: int, size: jax.Array | None = None) -> jax.Array:
    """Mask words uint32 [B, T, W] under which every new row sees every new row, or only the first
    `size` int32 [B] of them.
    """
    words = -(-rows // 32)
    if size is None:
        return jnp.full((batch, rows, words), 0xFFFFFFFF, jnp.uint32)
    bits = jnp.clip(size[:, None] - 32 * jnp.arange(words), 0, 32).astype(jnp.uint32)
    # A shift by all 32 bits is not defined.
    word = jnp.where(bits == 32, jnp.uint32(0xFFFFFFFF), (jnp.uint32(1) << (bits % 32)) - 1)
    return jnp.broadcast_to(word[:, None], (batch, rows, words))
