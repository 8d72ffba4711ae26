"""XLA references of the kernels, which run on every device."""

from __future__ import annotations

import jax
import jax.numpy as jnp

WORD = 32
# The score of what a row does not see: finite, so that differences are not NaN.
LOWEST = float(jnp.finfo(jnp.float32).min)


def unpack_mask(words: jax.Array, width: int) -> jax.Array:
    """Unpack `words` uint32 [..., W] to bool [..., width]; bit j of word w is column 32 w + j."""
    bits = (words[..., None] >> jnp.arange(WORD, dtype=jnp.uint32)) & 1
    return bits.reshape(*words.shape[:-1], -1)[..., :width].astype(bool)


def tree_attention(q, k, v, positions, mask=None, prefix=None, window=None):
    """Compute attention of T new rows over a cached prefix and over each other.

    Args:
      q: [B, T, H, D], after RoPE, not scaled.
      k, v: [B, R, K, D], keys and values of rows that are not in the cache: the T new rows, or more
        (then `mask` must be given).
      positions: int32 [B, T], absolute positions of the new rows; only read for `window`.
      mask: uint32 [B, T, ceil(R / 32)]; bit j of row i is set if new row i sees row j of `k`. None
        is causal.
      prefix: (cache_k, cache_v [L, B, K, S, D], layer, length int32 [B], first int32 [B] or None).
        Every new row sees `length` rows of the cache, starting at row `first` (None: 0), where
        positions count from 0. The layer may be int32 [2]: its second entry is then the first of B
        sequences in a cache of more. Only this function and `pallas_kernels.attention.blocks` take
        that.
      window: int or None; a row at position p sees prefix positions above p - window.

    Returns:
      [B, T, H, D] in q's dtype; zeros for rows that see nothing. The softmax is in float32.
    """
    kv_heads = k.shape[2]
    folded = fold_queries(q, kv_heads)
    visible = new_rows_seen(q, k, mask)
    keys, values, seen = [k.swapaxes(1, 2)], [v.swapaxes(1, 2)], [visible]
    if prefix is not None:
        cache_k, cache_v, layer, length, first = prefix
        slots = jnp.arange(cache_k.shape[3]) - (0 if first is None else first[:, None, None])
        live = slots < length[:, None, None]
        if first is not None:
            live = live & (slots >= 0)
        if window is not None:
            live = live & (slots > positions[..., None] - window)
        held = [
            jax.lax.dynamic_slice(cache, place_of(layer), (1, q.shape[0], *cache.shape[2:]))[0]
            for cache in (cache_k, cache_v)
        ]
        keys, values, seen = [held[0], *keys], [held[1], *values], [live, *seen]
    scores = [
        jnp.einsum("bkmd,bksd->bkms", folded, key, preferred_element_type=jnp.float32)
        for key in keys
    ]
    scores = [mask_scores(score, see) for score, see in zip(scores, seen, strict=True)]
    weights = _softmax(jnp.concatenate(scores, axis=-1)).astype(v.dtype)
    parts = jnp.split(weights, [scores[0].shape[-1]], axis=-1) if prefix is not None else [weights]
    out = sum(
        jnp.einsum("bkms,bksd->bkmd", part, value)
        for part, value in zip(parts, values, strict=True)
    )
    return unfold_queries(out, q.shape)


def place_of(layer, row=0) -> tuple:
    """Return where a block of a cache [L, B, K, S, D] begins, for the layer of a prefix, at `row`."""
    layer = jnp.asarray(layer, jnp.int32)
    layer, sequence = (layer[0], layer[1]) if layer.ndim else (layer, jnp.int32(0))
    return layer, sequence, 0, row, 0


def fold_queries(q: jax.Array, kv_heads: int) -> jax.Array:
    """Scale queries [B, T, H, D] and fold those that share a kv head into rows [B, K, T * G, D].

    Each key is then read once.
    """
    batch, rows, heads, dim = q.shape
    grouped = (q * dim**-0.5).reshape(batch, rows, kv_heads, heads // kv_heads, dim)
    return grouped.transpose(0, 2, 1, 3, 4).reshape(batch, kv_heads, -1, dim)


def unfold_queries(out: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Bring rows [B, K, T * G, D] of `fold_queries` back to `shape` [B, T, H, D]."""
    batch, rows, _, dim = shape
    return out.reshape(batch, out.shape[1], rows, -1, dim).transpose(0, 2, 1, 3, 4).reshape(shape)


def new_rows_seen(q: jax.Array, k: jax.Array, mask: jax.Array | None) -> jax.Array:
    """Unpack which rows of `k` each new row sees, bool [B or 1, T, R]; no mask is causal."""
    rows = q.shape[1]
    return jnp.tri(rows, dtype=bool)[None] if mask is None else unpack_mask(mask, k.shape[1])


def mask_scores(scores: jax.Array, visible: jax.Array) -> jax.Array:
    """Replace scores [B, K, T * G, S] by LOWEST where not visible [B or 1, T or 1, S]."""
    if visible.shape[1] > 1:
        visible = jnp.repeat(visible, scores.shape[2] // visible.shape[1], axis=1)
    return jnp.where(visible[:, None], scores, LOWEST)


def _softmax(scores: jax.Array) -> jax.Array:
    """Compute the softmax over the last axis; zeros for rows that see nothing.

    All scores of these rows are the lowest finite number.
    """
    top = jax.lax.stop_gradient(scores.max(axis=-1, keepdims=True))
    weights = jnp.exp(scores - top)
    return weights / jnp.where(top > LOWEST, weights.sum(axis=-1, keepdims=True), jnp.inf)


def normalize(x: jax.Array, scale: jax.Array, eps: float) -> jax.Array:
    """Divide `x` [..., D] by its root mean square (in float32), round, and multiply by `scale`."""
    x32 = x.astype(jnp.float32)
    x32 = x32 * jax.lax.rsqrt(jnp.mean(x32 * x32, axis=-1, keepdims=True) + eps)
    return scale * x32.astype(x.dtype)


def add_normalize(x, parts, scale, eps: float) -> tuple[jax.Array, jax.Array]:
    """Add a product to `x` and normalise the sum.

    Args:
      x: [B, T, E].
      parts: [S, B, T, E], see `add_parts`.
      scale: of the norm [E].
      eps: of the norm.

    Returns:
      The sum and the normalised sum [B, T, E], in x's dtype.
    """
    total = x + add_parts(parts, x.dtype)
    return total, normalize(total, scale, eps)


def add_parts(parts: jax.Array, dtype) -> jax.Array:
    """Add up the parts [S, ...] of a product in float32, and round the sum to `dtype`."""
    if parts.shape[0] == 1:
        return parts[0].astype(dtype)
    return parts.astype(jnp.float32).sum(0).astype(dtype)


def apply_rope(x: jax.Array, table: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Rotate `x` [B, T, heads, D]; components i and i + D/2 form a pair (half-split convention).

    Args:
      table: cosines and sines, float32 [B, T, 1, D/2].
    """
    cos, sin = table
    a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)


def split_heads(joined, table, scales, sizes, eps: float, dtype=None):
    """Split projections into heads; normalise and rotate queries and keys.

    Args:
      joined: queries, keys and values side by side [S, B, T, (H + 2K) * D], see `add_parts`.
      table: see `apply_rope`.
      scales: of the norms of queries and of keys [D], or None.
      sizes: (H, K, D).
      eps: of the norms.
      dtype: of the results (default: that of `joined`).

    Returns:
      q [B, T, H, D], k and v [B, T, K, D].
    """
    heads, kv_heads, dim = sizes
    joined = add_parts(joined, dtype or joined.dtype)
    all_heads = joined.reshape(*joined.shape[:2], heads + 2 * kv_heads, dim)
    q, k, v = jnp.split(all_heads, [heads, heads + kv_heads], axis=2)
    if scales is not None:
        q, k = (normalize(x, scale, eps) for x, scale in zip((q, k), scales, strict=True))
    return apply_rope(q, table), apply_rope(k, table), v
