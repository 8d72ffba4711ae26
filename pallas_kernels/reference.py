"""XLA references of the kernels, which run on every device."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

WORD = 32


class Norm(NamedTuple):
    """How an RMSNorm computes.

    Attributes:
      eps: added to the mean square.
      centred: whether it multiplies by 1 + the stored weight.
      wide: whether it multiplies in float32 and rounds afterwards, or rounds before.
    """

    eps: float
    centred: bool = False
    wide: bool = False


# The score of what a row does not see: finite, so that differences are not NaN.
LOWEST = float(jnp.finfo(jnp.float32).min)


def unpack_mask(words: jax.Array, width: int) -> jax.Array:
    """Unpack `words` uint32 [..., W] to bool [..., width]; bit j of word w is column 32 w + j."""
    bits = (words[..., None] >> jnp.arange(WORD, dtype=jnp.uint32)) & 1
    return bits.reshape(*words.shape[:-1], -1)[..., :width].astype(bool)


def tree_attention(q, k, v, positions, mask=None, prefix=None, window=None, scale=None, sinks=None):
    """Compute attention of T new rows over a cached prefix and over each other.

    Args:
      q: [B, T, H, D], after RoPE, not scaled.
      k: [B, R, K, D], keys of rows that are not in the cache: the T new rows, or more (then `mask`
        must be given).
      v: [B, R, K, Dv], their values.
      positions: int32 [B, T], absolute positions of the new rows; only read for `window`.
      mask: uint32 [B, T, ceil(R / 32)]; bit j of row i is set if new row i sees row j of `k`. None
        is causal.
      prefix: (cache_k [L, B, K, S, D], cache_v [L, B, K, S, Dv], layer, length int32 [B], first
        int32 [B] or None). Every new row sees `length` rows of the cache, starting at row `first`
        (None: 0), where positions count from 0. The cache may be in fp8. The layer may be int32
        [2]: its second entry is then the first of B sequences in a cache of more. Only this
        function and `pallas_kernels.attention.blocks` take that.
      window: int or None; a row at position p sees prefix positions above p - window. What it sees
        of new rows, `mask` alone says.
      scale: factor of the scores, a static float (default: D ** -0.5).
      sinks: float32 [H], a logit of each head that takes part in the softmax and has no value.

    Returns:
      [B, T, H, Dv] in q's dtype; zeros for rows that see nothing. The softmax is in float32.
    """
    kv_heads = k.shape[2]
    folded = fold_queries(q, kv_heads, scale)
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
            jax.lax.dynamic_slice(cache, place_of(layer), (1, q.shape[0], *cache.shape[2:]))[
                0
            ].astype(q.dtype)
            for cache in (cache_k, cache_v)
        ]
        keys, values, seen = [held[0], *keys], [held[1], *values], [live, *seen]
    scores = [
        jnp.einsum("bkmd,bksd->bkms", folded, key, preferred_element_type=jnp.float32)
        for key in keys
    ]
    scores = [mask_scores(score, see) for score, see in zip(scores, seen, strict=True)]
    sink = None if sinks is None else fold_sinks(sinks, kv_heads, q.shape[1])[..., None]
    weights = _softmax(jnp.concatenate(scores, axis=-1), sink).astype(v.dtype)
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


def fold_queries(q: jax.Array, kv_heads: int, scale: float | None = None) -> jax.Array:
    """Scale queries [B, T, H, D] and fold those that share a kv head into rows [B, K, T * G, D].

    Each key is then read once.
    """
    batch, rows, heads, dim = q.shape
    scale = dim**-0.5 if scale is None else scale
    grouped = (q * scale).reshape(batch, rows, kv_heads, heads // kv_heads, dim)
    return grouped.transpose(0, 2, 1, 3, 4).reshape(batch, kv_heads, -1, dim)


def fold_sinks(sinks: jax.Array, kv_heads: int, rows: int) -> jax.Array:
    """Repeat sinks [H] for the rows of `fold_queries`, float32 [1, K, T * G]."""
    return jnp.tile(sinks.astype(jnp.float32).reshape(1, kv_heads, -1), (1, 1, rows))


def unfold_queries(out: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Bring rows [B, K, T * G, Dv] of queries of `shape` [B, T, H, D] back to [B, T, H, Dv]."""
    batch, rows, heads, _ = shape
    grouped = out.reshape(batch, out.shape[1], rows, -1, out.shape[-1])
    return grouped.transpose(0, 2, 1, 3, 4).reshape(batch, rows, heads, out.shape[-1])


def new_rows_seen(q: jax.Array, k: jax.Array, mask: jax.Array | None) -> jax.Array:
    """Unpack which rows of `k` each new row sees, bool [B or 1, T, R]; no mask is causal."""
    rows = q.shape[1]
    return jnp.tri(rows, dtype=bool)[None] if mask is None else unpack_mask(mask, k.shape[1])


def mask_scores(scores: jax.Array, visible: jax.Array) -> jax.Array:
    """Replace scores [B, K, T * G, S] by LOWEST where not visible [B or 1, T or 1, S]."""
    if visible.shape[1] > 1:
        visible = jnp.repeat(visible, scores.shape[2] // visible.shape[1], axis=1)
    return jnp.where(visible[:, None], scores, LOWEST)


def _softmax(scores: jax.Array, sink: jax.Array | None = None) -> jax.Array:
    """Compute the softmax over the last axis, to which a `sink` [..., 1] belongs.

    All scores of a row that sees nothing are the lowest finite number: it gives zeros.
    """
    top = jax.lax.stop_gradient(scores.max(axis=-1, keepdims=True))
    if sink is None:
        weights = jnp.exp(scores - top)
        return weights / jnp.where(top > LOWEST, weights.sum(axis=-1, keepdims=True), jnp.inf)
    top = jnp.maximum(top, jax.lax.stop_gradient(sink))
    weights = jnp.exp(scores - top)
    return weights / (weights.sum(axis=-1, keepdims=True) + jnp.exp(sink - top))


def normalize(x: jax.Array, scale: jax.Array, norm: Norm) -> jax.Array:
    """Divide `x` [..., D] by its root mean square, in float32, and multiply by `scale`."""
    x32 = x.astype(jnp.float32)
    x32 = x32 * jax.lax.rsqrt(jnp.mean(x32 * x32, axis=-1, keepdims=True) + norm.eps)
    return rescale(x32, scale, norm, x.dtype)


def rescale(x32: jax.Array, scale: jax.Array, norm: Norm, dtype) -> jax.Array:
    """Multiply normalised values, float32 [..., D], by the weight of the norm; round to `dtype`."""
    if norm.centred:
        scale = 1 + scale.astype(jnp.float32)
    if norm.wide or norm.centred:
        return (scale.astype(jnp.float32) * x32).astype(dtype)
    return scale * x32.astype(dtype)


def add_normalize(x, parts, scale, norm: Norm) -> tuple[jax.Array, jax.Array]:
    """Add a product to `x` and normalise the sum.

    Args:
      x: [B, T, E].
      parts: [S, B, T, E], see `add_parts`.
      scale: the weight of the norm [E].
      norm: how it computes.

    Returns:
      The sum and the normalised sum [B, T, E], in x's dtype.
    """
    total = x + add_parts(parts, x.dtype)
    return total, normalize(total, scale, norm)


class Gate(NamedTuple):
    """How a feed-forward gates its units.

    Attributes:
      activation: `silu` or `gelu_tanh`.
      clamp: (limit, gain) of gpt-oss's units, which have another activation; or None.
    """

    activation: str = "silu"
    clamp: tuple[float, float] | None = None


def gate_units(gate: jax.Array, up: jax.Array, kind: Gate) -> jax.Array:
    """Compute the hidden units of a gated feed-forward, elementwise."""
    if kind.clamp is not None:
        limit, gain = kind.clamp
        gate, up = jnp.minimum(gate, limit), jnp.clip(up, -limit, limit)
        return (up + 1) * gate * jax.nn.sigmoid(gain * gate)
    if kind.activation == "silu":
        return gate * jax.nn.sigmoid(gate) * up
    return jax.nn.gelu(gate, approximate=True) * up


def add_parts(parts: jax.Array, dtype) -> jax.Array:
    """Add up the parts [S, ...] of a product in float32, and round the sum to `dtype`."""
    if parts.shape[0] == 1:
        return parts[0].astype(dtype)
    return parts.astype(jnp.float32).sum(0).astype(dtype)


def apply_rope(x: jax.Array, table: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Rotate `x` [B, T, heads, D]; components i and i + r/2 form a pair (half-split convention).

    Args:
      table: cosines and sines, float32 [B, T, 1, r/2]; components from r on are not rotated.
    """
    cos, sin = table
    half = cos.shape[-1]
    a, b = x[..., :half].astype(jnp.float32), x[..., half : 2 * half].astype(jnp.float32)
    rotated = jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)
    if 2 * half == x.shape[-1]:
        return rotated
    return jnp.concatenate([rotated, x[..., 2 * half :]], axis=-1)


def split_heads(joined, table, scales, sizes, norm: Norm, dtype=None):
    """Split projections into heads; normalise and rotate queries and keys.

    Args:
      joined: queries, keys and values side by side [S, B, T, (H + 2K) * D], see `add_parts`.
      table: see `apply_rope`.
      scales: of the norms of queries and of keys [D], or None.
      sizes: (H, K, D).
      norm: how the norms compute.
      dtype: of the results (default: that of `joined`).

    Returns:
      q [B, T, H, D], k and v [B, T, K, D].
    """
    heads, kv_heads, dim = sizes
    joined = add_parts(joined, dtype or joined.dtype)
    all_heads = joined.reshape(*joined.shape[:2], heads + 2 * kv_heads, dim)
    q, k, v = jnp.split(all_heads, [heads, heads + kv_heads], axis=2)
    if scales is not None:
        q, k = (normalize(x, scale, norm) for x, scale in zip((q, k), scales, strict=True))
    return apply_rope(q, table), apply_rope(k, table), v
