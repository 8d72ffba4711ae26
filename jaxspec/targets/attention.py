"""Entry points of `pallas_kernels`: attention of new rows over a cached prefix and each other."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxspec.core.cache import PackedPrefix
from pallas_kernels.reference import WORD
from pallas_kernels.registry import Problem, resolve_kernel


def attend(
    q, k, v, positions, *, mask=None, prefix=None, window=None, scale=None, sinks=None
) -> jax.Array:
    """Compute `pallas_kernels.reference.tree_attention` with the implementation of the registry.

    With a `PackedPrefix`, q, k and v hold packed rows [1, R, ...] of B sequences, and `mask` is of
    each sequence's own rows [B, N, W]; see `pallas_kernels.attention.packed_attention.by_sequence`.
    """
    operation, given = "tree_attention", {"mask": mask, "prefix": prefix, "window": window}
    given |= {"scale": scale, "sinks": sinks}
    if isinstance(prefix, PackedPrefix):
        operation = "packed_attention"
        given |= {"prefix": prefix.whole, "packing": prefix.packing}
    problem = Problem.of(q, k, v, given["prefix"])
    return resolve_kernel(operation, problem)(q, k, v, positions, **given)


def mask_window(
    mask: jax.Array | None, positions: jax.Array, keys: jax.Array, window: int
) -> jax.Array:
    """Take from a mask of new rows what lies outside of each row's window.

    Args:
      mask: uint32 [B, T, ceil(R / 32)], or None: causal, with R = T.
      positions: int32 [B, T], of the rows that see.
      keys: int32 [B, R], of the rows that are seen.
      window: a row at position p sees positions above p - window.

    Returns:
      uint32 [B, T, ceil(R / 32)].
    """
    count = keys.shape[1]
    inside = keys[:, None, :] > positions[:, :, None] - window
    if mask is None:
        inside = inside & jnp.tri(count, dtype=bool)
    padded = jnp.pad(inside, [(0, 0), (0, 0), (0, -count % WORD)])
    bits = padded.reshape(*inside.shape[:2], -1, WORD).astype(jnp.uint32)
    words = (bits << jnp.arange(WORD, dtype=jnp.uint32)).sum(-1, dtype=jnp.uint32)
    return words if mask is None else mask & words


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
