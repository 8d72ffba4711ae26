"""Decoder layers shared by targets and drafters: attention and gated feed-forward.

Projections that read the same input are fused. Drafters keep q apart from k and v, because they
project k and v of context features alone.
"""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxspec.core.config import LayerConfig
from jaxspec.targets.attention import attend
from jaxspec.targets.delta_net import GatedDeltaNet
from jaxspec.targets.linear import Linear
from jaxspec.targets.mlp import GatedMLP, choose_parts
from jaxspec.targets.moe import SparseMLP
from jaxspec.targets.norm import RMSNorm, add_normalize, divide_by_size, norm_of
from pallas_kernels import heads
from pallas_kernels.reference import Gate, add_parts, apply_rope, gate_units


class Attention(nn.Module):
    """Grouped-query attention of new rows over a cached prefix and each other.

    It also returns keys and values of the new rows. With `fused`, queries, keys and values come
    from one product, and `keys_values` has no weights to use. A layer that reads another one's keys
    and values projects queries alone. With `axis`, this is one device's share of the heads.
    """

    config: LayerConfig
    fused: bool = False
    axis: str | None = None

    def setup(self):
        c = self.config
        queries, keys, values = c.count_columns()
        if c.kv_source is not None:
            self.q = Linear(queries, c.qkv_bias)
        elif self.fused:
            self.qkv = Linear(queries + keys + values, c.qkv_bias)
        else:
            self.q = Linear(queries, c.qkv_bias)
            self.kv = Linear(keys + values, c.qkv_bias)
        self.o = Linear(c.hidden_size, c.o_bias)
        if c.qk_norm:
            axis = self.axis if c.qk_norm_whole else None
            self.q_norm = RMSNorm(norm_of(c), axis)
            self.k_norm = RMSNorm(norm_of(c), axis) if c.kv_source is None else None
        if c.sinks:
            self.sinks = self.param("sinks", nn.initializers.zeros, (c.num_heads,))

    def keys_values(self, x: jax.Array, rope) -> tuple[jax.Array, jax.Array]:
        """Compute rotated keys [B, T, K, D] and values [B, T, K, Dv] of `x` [B, T, E]."""
        return self._rotated(self.kv(x), rope)

    def _rotated(self, kv: jax.Array, rope) -> tuple[jax.Array, jax.Array]:
        c, shape = self.config, (*kv.shape[:2], self.config.num_kv_heads)
        k, v = (kv, kv) if c.k_is_v else jnp.split(kv, [c.count_columns()[1]], axis=-1)
        k = apply_rope(self._normalized("k_norm", k, (*shape, c.head_dim)), rope)
        return k, self._finish_values(v.reshape(*shape, c.value_dim))

    def _finish_values(self, v: jax.Array) -> jax.Array:
        """Normalise and scale values [B, T, K, Dv] as the layer does."""
        v = divide_by_size(v, self.config.norm_eps) if self.config.v_norm else v
        return v if self.config.v_scale == 1 else v * jnp.asarray(self.config.v_scale, v.dtype)

    def _normalized(self, name: str, x: jax.Array, heads: tuple[int, ...]) -> jax.Array:
        """Split `x` [B, T, heads * D] into heads, and normalise them or `x` if there is a norm."""
        if not self.config.qk_norm:
            return x.reshape(heads)
        norm = getattr(self, name)
        return norm(x).reshape(heads) if self.config.qk_norm_whole else norm(x.reshape(heads))

    def __call__(self, x, rope, positions, mask, prefix, window=None, earlier=None):
        parts, new_kv = self.in_parts(x, rope, positions, mask, prefix, window, earlier)
        return add_parts(parts, x.dtype), new_kv

    def in_parts(self, x, rope, positions, mask, prefix, window=None, earlier=None, source_kv=None):
        """Compute the result [S, B, T, E], see `pallas_kernels.reference.add_parts`, and the new
        rows' k and v; `source_kv` are those of the layer that this one reads.
        """
        cached, c = prefix is not None, self.config
        if c.kv_source is None:
            q, k, v, gate = self._project(x, rope, cached)
            if c.cache_dtype is not None:
                k, v = round_to(k, c.cache_dtype), round_to(v, c.cache_dtype)
        else:
            q, gate = self._queries(self.q(x), rope)
            k, v = source_kv
        if c.position_growth is not None:
            q = _grow(q, positions, *c.position_growth)
        keys, values = (k, v) if earlier is None else behind(earlier, k, v)
        out = attend(
            q,
            keys,
            values,
            positions,
            mask=mask,
            prefix=prefix,
            window=window,
            scale=c.score_scale,
            sinks=self.sinks if c.sinks else None,
        )
        out = out.reshape(*x.shape[:2], -1)
        if gate is not None:
            out = out * jax.nn.sigmoid(gate)
        return self.o(out, choose_parts(out, c.hidden_size, cached)), (k, v)

    def _project(self, x, rope, cached: bool) -> tuple:
        """Compute q [B, T, H, D], k [B, T, K, D] and v [B, T, K, Dv]; rotate q and k.

        The fourth is the gate [B, T, H * D] of the result, or None.
        """
        c = self.config
        queries, keys, values = c.count_columns()
        products = (self.qkv,) if self.fused else (self.q, self.kv)
        # Prompts and training without a cache are left to XLA: their rows are many.
        usual = not (c.qk_norm_whole or c.output_gate) and 2 * rope[0].shape[-1] == c.head_dim
        usual = usual and keys == values and not c.v_norm
        split = heads.find_kernel(x.dtype, c.head_dim) if cached and usual else None
        if split is not None and not self.is_initializing():
            norms = (self.q_norm, self.k_norm) if c.qk_norm else ()
            scales = tuple(norm.variables["params"]["scale"] for norm in norms) or None
            sizes = c.num_heads, c.num_kv_heads, c.head_dim
            parts = choose_parts(x, queries + keys + values, cached)
            # Of two products of matrices, XLA makes one, and then needs no concatenation.
            rows = x.reshape(-1, x.shape[-1])
            joined = jnp.concatenate([product(rows, parts) for product in products], axis=-1)
            joined = joined.reshape(-1, *x.shape[:2], joined.shape[-1])
            q, k, v = split(joined, rope, scales, sizes, norm_of(c), x.dtype)
            return q, k, self._finish_values(v), None
        projected = [product(x) for product in products]
        q, kv = jnp.split(projected[0], [queries], axis=-1) if self.fused else projected
        q, gate = self._queries(q, rope)
        return q, *self._rotated(kv, rope), gate

    def _queries(self, q: jax.Array, rope) -> tuple[jax.Array, jax.Array | None]:
        """Split q into heads [B, T, H, D], normalise and rotate them; return their gates too."""
        c, gate = self.config, None
        if c.output_gate:  # each head's query stands before its gate
            halves = jnp.split(q.reshape(*q.shape[:2], c.num_heads, -1), 2, axis=-1)
            q, gate = (half.reshape(*q.shape[:2], -1) for half in halves)
        heads = (*q.shape[:2], c.num_heads, c.head_dim)
        return apply_rope(self._normalized("q_norm", q, heads), rope), gate


def round_to(x: jax.Array, dtype: str) -> jax.Array:
    """Round to the nearest numbers that a narrower `dtype` has; the result has x's dtype.

    New rows are read so too, not only from the cache: what a row sees does not depend on the round
    in which it is verified.
    """
    most = float(jnp.finfo(dtype).max)
    return jnp.clip(x, -most, most).astype(dtype).astype(x.dtype)


def _grow(q: jax.Array, positions: jax.Array, a: float, b: float) -> jax.Array:
    """Multiply queries [B, T, H, D] by 1 + a log(1 + floor(p / b)) at their positions p."""
    growth = 1 + a * jnp.log1p(jnp.floor(positions.astype(jnp.float32) / b))
    return q * growth[..., None, None].astype(q.dtype)


def behind(earlier, k: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Write keys and values of T new rows `k`, `v` among those of rows computed earlier.

    Args:
      earlier: (k [B, R, K, D], v [B, R, K, Dv], row), where `row` is the index of the first new
        row. The mask of the new rows then covers all R rows.
      k, v: [B, T, K, D] and [B, T, K, Dv].

    Returns:
      k, v: [B, R, K, D] and [B, R, K, Dv].
    """
    old_k, old_v, row = earlier
    at = (0, row, 0, 0)
    return jax.lax.dynamic_update_slice(old_k, k, at), jax.lax.dynamic_update_slice(old_v, v, at)


class DecoderLayer(nn.Module):
    """Attention, or a gated delta net, and feed-forward, dense or sparse, with norms and residual
    connections.

    With `axis`, this is one device's share of the layer's heads and feed-forward, inside
    `jax.shard_map` over that axis of the mesh.
    """

    config: LayerConfig
    fused_qkv: bool = False
    axis: str | None = None

    def setup(self):
        c = self.config
        before, after = c.norms in ("pre", "sandwich"), c.norms in ("post", "sandwich")
        self.attention_norm = RMSNorm(norm_of(c)) if before else None
        if c.delta is None:
            self.attention = Attention(c, self.fused_qkv, self.axis)
        else:
            self.delta_net = GatedDeltaNet(c)
        self.attention_post_norm = RMSNorm(norm_of(c)) if after else None
        self.mlp_norm = RMSNorm(norm_of(c)) if before else None
        self.mlp = GatedMLP(c) if c.has_dense() else SparseMLP(c)
        self.mlp_post_norm = RMSNorm(norm_of(c)) if after else None
        self.experts = None
        if c.moe is not None and c.moe.beside_dense:
            self.experts, self.experts_norm = SparseMLP(c), RMSNorm(norm_of(c))
            self.dense_post_norm, self.experts_post_norm = (RMSNorm(norm_of(c)) for _ in range(2))
        if c.per_layer_size:
            self.per_layer_gate = Linear(c.per_layer_size)
            self.per_layer_projection = Linear(c.hidden_size)
            self.per_layer_norm = RMSNorm(norm_of(c))
        if c.output_scale:
            self.scale = self.param("output_scale", nn.initializers.ones, (1,))

    def __call__(self, x, rope, positions, mask=None, prefix=None, window=None, earlier=None):
        normed = x if self.attention_norm is None else self.attention_norm(x)
        x, parts, new_kv = self.between_norms(
            x, normed, rope, positions, mask, prefix, window, earlier
        )
        return add_normalize(None, x, parts, prefix is not None)[0], new_kv

    def between_norms(
        self,
        x,
        normed,
        rope,
        positions,
        mask,
        prefix,
        window=None,
        earlier=None,
        source_kv=None,
        per_layer=None,
    ):
        """Run all between the first norm, whose result is `normed`, and the last addition.

        The norm that follows does that addition, see `RMSNorm.add_normalize`. For a gated delta
        net, `mask` and `prefix` are `lineage` and `prefix` of `GatedDeltaNet.in_parts`.

        Args:
          source_kv: keys and values of the new rows in the layer whose keys and values this one
            reads.
          per_layer: [B, T, P], the tokens' inputs for this layer.

        Returns:
          (`x` [B, T, E] after attention; what to add to it [S, B, T, E], None if `x` is complete;
          new rows' k and v, or of a gated delta net their `jaxspec.core.recurrent.Stash`).
        """
        if self.config.delta is None:
            attended, new_kv = self.attention.in_parts(
                normed, rope, positions, mask, prefix, window, earlier, source_kv
            )
        else:
            attended, new_kv = self.delta_net.in_parts(normed, mask, prefix)
        cached, c = prefix is not None, self.config
        attended = self._close(attended, self.attention_post_norm, x)
        x, normed = add_normalize(self.mlp_norm, x, attended, cached)
        parts = self._feed_forward(x, normed, cached)
        if not (c.per_layer_size or c.output_scale):
            return x, parts, new_kv
        x = x + add_parts(parts, x.dtype)
        if c.per_layer_size:
            gate = gate_units(self.per_layer_gate(x), per_layer, Gate(c.activation))
            x = x + self.per_layer_norm(self.per_layer_projection(gate))
        return x * self.scale if c.output_scale else x, None, new_kv

    def _feed_forward(self, x: jax.Array, normed: jax.Array, cached: bool) -> jax.Array:
        """Compute what the feed-forward adds to `x` [B, T, E], as parts [S, B, T, E].

        Args:
          normed: `x` after the norm before the feed-forward.
        """
        parts = self.mlp.in_parts(normed, cached)
        if self.experts is None:
            return self._close(parts, self.mlp_post_norm, x)
        dense = self._close(parts, self.dense_post_norm, x)
        sparse = self.experts.in_parts(self.experts_norm(x), cached, x)
        both = dense + self._close(sparse, self.experts_post_norm, x)
        return self.mlp_post_norm(both[0])[None]

    def _close(self, parts: jax.Array, norm: RMSNorm | None, x: jax.Array) -> jax.Array:
        """Add up the shares [S, B, T, E] of all devices, and normalise and scale their sum."""
        if self.axis is not None:
            parts = jax.lax.psum(add_parts(parts, x.dtype), self.axis)[None]
        if norm is not None:
            parts = norm(add_parts(parts, x.dtype))[None]
        return parts if self.config.residual_scale == 1 else parts * self.config.residual_scale

    def context_kv(self, context: jax.Array, rope) -> tuple[jax.Array, jax.Array]:
        """Compute keys and values [B, T, K, D] of context features, without the norm before
        attention (DFlash).
        """
        return self.attention.keys_values(context, rope)
