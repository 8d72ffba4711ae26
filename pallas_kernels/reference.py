"""XLA twins of the kernels: always correct, on every device."""

from __future__ import annotations

import jax
import jax.numpy as jnp

WORD = 32
_LOWEST = float(jnp.finfo(jnp.float32).min)


def unpack_mask(words: jax.Array, width: int) -> jax.Array:
    """Bits of `words` uint32 [..., W] as bool [..., width]: bit j of word w is column 32 w + j."""
    bits = (words[..., None] >> jnp.arange(WORD, dtype=jnp.uint32)) & 1
    return bits.reshape(*words.shape[:-1], -1)[..., :width].astype(bool)


def tree_attention(q, k, v, positions, mask=None, prefix=None, window=None):
    """Attention of T new rows over a cached prefix and over each other.

    Args:
      q: [B, T, H, D], RoPE applied, not scaled.
      k, v: [B, R, K, D], keys and values of the rows that are not in the cache: the new ones, R =
        T, or with others among them (then `mask` must be given).
      positions: int32 [B, T], absolute positions of the new rows (read only for `window`).
      mask: uint32 [B, T, ceil(R / 32)], bit j of row i set where new row i sees row j of `k`; None
        is causal.
      prefix: (cache_k, cache_v [L, B, K, S, D], layer, length int32 [B], first int32 [B] or None):
        every new row sees `length` rows of the cache, from row `first` on (None: 0). Positions
        count from there.
      window: int or None; a row at position p sees prefix positions above p - window.

    Returns:
      [B, T, H, D] in q's dtype, zeros in rows that see nothing; the softmax is taken in float32.
    """
    batch, rows, heads, dim = q.shape
    kv_heads = k.shape[2]
    # Fold query heads that share a kv head into rows, so that each key is read once: [B, K, T * G,
    # D].
    folded = (
        (q * dim**-0.5)
        .reshape(batch, rows, kv_heads, -1, dim)
        .transpose(0, 2, 1, 3, 4)
        .reshape(batch, kv_heads, -1, dim)
    )
    visible = jnp.tri(rows, dtype=bool)[None] if mask is None else unpack_mask(mask, k.shape[1])
    keys, values, seen = [k.swapaxes(1, 2)], [v.swapaxes(1, 2)], [visible]
    if prefix is not None:
        cache_k, cache_v, layer, length, first = prefix
        slots = jnp.arange(cache_k.shape[3]) - (0 if first is None else first[:, None, None])
        live = slots < length[:, None, None]
        if first is not None:
            live = live & (slots >= 0)
        if window is not None:
            live = live & (slots > positions[..., None] - window)
        keys, values, seen = [cache_k[layer], *keys], [cache_v[layer], *values], [live, *seen]
    scores = [
        jnp.einsum("bkmd,bksd->bkms", folded, key, preferred_element_type=jnp.float32)
        for key in keys
    ]
    scores = [
        _masked(score, see, heads // kv_heads) for score, see in zip(scores, seen, strict=True)
    ]
    weights = _softmax(jnp.concatenate(scores, axis=-1)).astype(v.dtype)
    parts = jnp.split(weights, [scores[0].shape[-1]], axis=-1) if prefix is not None else [weights]
    out = sum(
        jnp.einsum("bkms,bksd->bkmd", part, value)
        for part, value in zip(parts, values, strict=True)
    )
    return (
        out.reshape(batch, kv_heads, rows, -1, dim)
        .transpose(0, 2, 1, 3, 4)
        .reshape(batch, rows, heads, dim)
    )


def _masked(scores: jax.Array, visible: jax.Array, groups: int) -> jax.Array:
    """Lowest finite score where not visible."""
    visible = jnp.repeat(visible, groups, axis=1) if visible.shape[1] > 1 else visible
    return jnp.where(visible[:, None], scores, _LOWEST)


def _softmax(scores: jax.Array) -> jax.Array:
    """Softmax over the last axis; zeros where all scores are the lowest finite one, that is where a
    row sees nothing.
    """
    top = jax.lax.stop_gradient(scores.max(axis=-1, keepdims=True))
    weights = jnp.exp(scores - top)
    return weights / jnp.where(top > _LOWEST, weights.sum(axis=-1, keepdims=True), jnp.inf)
