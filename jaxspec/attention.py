"""Attention of new rows over (cached prefix + visible new rows): entry points over `pallas_kernels`."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pallas_kernels.registry import Problem, resolve


def tree_attention(q, k, v, positions, *, mask=None, prefix=None, window=None) -> jax.Array:
    """See `pallas_kernels.reference.tree_attention`; `pallas_kernels.registry` chooses what computes it."""
    problem = Problem.of(q, k, v, prefix)
    return resolve("tree_attention", problem)(q, k, v, positions, mask=mask, prefix=prefix, window=window)


def full_mask(batch: int, rows: int) -> jax.Array:
    """Mask words uint32 [B, T, W] under which every new row sees every new row."""
    words = -(-rows // 32)
    return jnp.full((batch, rows, words), 0xFFFFFFFF, jnp.uint32)
