"""Decoder layers shared by targets and drafters: RMSNorm, RoPE, attention, gated feed-forward.

Projections that read the same input are fused. Drafters keep q apart from k and v, because they
project k and v of context features alone.
"""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.core.config import TransformerConfig
from jaxspec.targets.attention import attend
from jaxspec.targets.linear import Linear
from pallas_kernels import heads, residual
from pallas_kernels.reference import add_parts, apply_rope, normalize


class RMSNorm(nn.Module):
    """Root-mean-square norm with statistics in float32.

    As in Qwen3RMSNorm, the normalised input is rounded before it is multiplied by the weight.
    """

    eps: float

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        scale = self.param("scale", nn.initializers.ones, (x.shape[-1],))
        return normalize(x, scale, self.eps)

    def add_normalize(
        self, x: jax.Array, parts: jax.Array, cached: bool
    ) -> tuple[jax.Array, jax.Array]:
        """Add a product to `x` and normalise the sum; of rows over a cache in one kernel.

        Args:
          parts: [S, B, T, E], see `pallas_kernels.reference.add_parts`.
          cached: whether the rows see a cache. Other rows are many, and are left to XLA.

        Returns:
          The sum and its norm [B, T, E].
        """
        kernel = residual.find_kernel(x.dtype) if cached else None
        if kernel is None or self.is_initializing():
            total = x + add_parts(parts, x.dtype)
            return total, self(total)
        return kernel(x, parts, self.variables["params"]["scale"], self.eps)


def rope_table(positions: jax.Array, config: TransformerConfig) -> tuple[jax.Array, jax.Array]:
    """Compute cosines and sines, float32 [B, T, 1, D/2], at `positions` int32 [B, T]."""
    angles = positions[..., None, None].astype(jnp.float32) * rope_frequency(config)
    return jnp.cos(angles), jnp.sin(angles)


def rope_frequency(config: TransformerConfig) -> np.ndarray:
    """Compute the rotation per position of each pair of components, float32 [D/2].

    It is a constant of the compiled program. Float32 operations come in the same order as for the
    published checkpoints: one unit in the last place moves the angle at position 30,000 by 2e-3.
    """
    exponent = np.arange(0, config.head_dim, 2, dtype=np.float32) / np.float32(config.head_dim)
    frequency = np.float32(1) / np.float32(config.rope_theta) ** exponent
    if config.rope_scaling is not None:
        frequency = _llama3_frequency(frequency, config.rope_scaling)
    return frequency


def _llama3_frequency(frequency, scaling):
    """Divide slow rotations by `factor`, keep fast ones, interpolate between them (Llama 3.1)."""
    turns = scaling.original_max_positions / (np.float32(2 * np.pi) / frequency)
    smooth = (turns - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    smooth = np.clip(smooth, 0, 1).astype(np.float32)
    return ((1 - smooth) * (frequency / np.float32(scaling.factor)) + smooth * frequency).astype(
        np.float32
    )


class Attention(nn.Module):
    """Grouped-query attention of new rows over a cached prefix and each other.

    It also returns keys and values of the new rows. With `fused`, queries, keys and values come
    from one product, and `keys_values` has no weights to use.
    """

    config: TransformerConfig
    fused: bool = False

    def setup(self):
        c = self.config
        queries, keys = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
        if self.fused:
            self.qkv = Linear(queries + 2 * keys, c.attention_bias)
        else:
            self.q = Linear(queries, c.attention_bias)
            self.kv = Linear(2 * keys, c.attention_bias)
        self.o = Linear(c.hidden_size, c.attention_bias)
        if c.qk_norm:
            self.q_norm = RMSNorm(c.norm_eps)
            self.k_norm = RMSNorm(c.norm_eps)

    def keys_values(self, x: jax.Array, rope) -> tuple[jax.Array, jax.Array]:
        """Compute rotated keys and values [B, T, K, D] of `x` [B, T, E]."""
        return self._rotated(self.kv(x), rope)

    def _rotated(self, kv: jax.Array, rope) -> tuple[jax.Array, jax.Array]:
        kv = kv.reshape(*kv.shape[:2], 2, self.config.num_kv_heads, self.config.head_dim)
        k = self.k_norm(kv[:, :, 0]) if self.config.qk_norm else kv[:, :, 0]
        return apply_rope(k, rope), kv[:, :, 1]

    def __call__(self, x, rope, positions, mask, prefix, window=None, earlier=None):
        parts, new_kv = self.in_parts(x, rope, positions, mask, prefix, window, earlier)
        return add_parts(parts, x.dtype), new_kv

    def in_parts(self, x, rope, positions, mask, prefix, window=None, earlier=None):
        """Compute the result [S, B, T, E], see `pallas_kernels.reference.add_parts`, and the new
        rows' k and v.
        """
        cached = prefix is not None
        q, k, v = self._project(x, rope, cached)
        keys, values = (k, v) if earlier is None else behind(earlier, k, v)
        out = attend(q, keys, values, positions, mask=mask, prefix=prefix, window=window)
        out = out.reshape(*x.shape[:2], -1)
        return self.o(out, choose_parts(out, self.config.hidden_size, cached)), (k, v)

    def _project(self, x, rope, cached: bool) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Compute q [B, T, H, D], k and v [B, T, K, D]; rotate q and k."""
        c = self.config
        queries, keys = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
        products = (self.qkv,) if self.fused else (self.q, self.kv)
        # Prompts and training without a cache are left to XLA: their rows are many.
        split = heads.find_kernel(x.dtype, c.head_dim) if cached else None
        if split is not None and not self.is_initializing():
            norms = (self.q_norm, self.k_norm) if c.qk_norm else ()
            scales = tuple(norm.variables["params"]["scale"] for norm in norms) or None
            sizes = c.num_heads, c.num_kv_heads, c.head_dim
            parts = choose_parts(x, queries + 2 * keys, cached)
            # Of two products of matrices, XLA makes one, and then needs no concatenation.
            rows = x.reshape(-1, x.shape[-1])
            joined = jnp.concatenate([product(rows, parts) for product in products], axis=-1)
            joined = joined.reshape(-1, *x.shape[:2], joined.shape[-1])
            return split(joined, rope, scales, sizes, c.norm_eps, x.dtype)
        projected = [product(x) for product in products]
        q, kv = jnp.split(projected[0], [queries], axis=-1) if self.fused else projected
        q = q.reshape(*q.shape[:2], c.num_heads, c.head_dim)
        q = apply_rope(self.q_norm(q) if c.qk_norm else q, rope)
        return q, *self._rotated(kv, rope)


def choose_parts(x: jax.Array, outputs: int, cached: bool) -> int:
    """Choose the number of parts of a product of `x` [B, T, in], which the next kernel adds up."""
    if not cached or residual.find_kernel(x.dtype) is None:
        return 1
    return residual.count_parts(x.shape[0] * x.shape[1], x.shape[2], outputs)


def behind(earlier, k: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Write keys and values of T new rows `k`, `v` among those of rows computed earlier.

    Args:
      earlier: (k, v [B, R, K, D], row), where `row` is the index of the first new row. The mask of
        the new rows then covers all R rows.
      k, v: [B, T, K, D].

    Returns:
      k, v: [B, R, K, D].
    """
    old_k, old_v, row = earlier
    at = (0, row, 0, 0)
    return jax.lax.dynamic_update_slice(old_k, k, at), jax.lax.dynamic_update_slice(old_v, v, at)


class GatedMLP(nn.Module):
    """`down(silu(gate(x)) * up(x))` with gate and up fused.

    Attributes:
      outputs: width of the result; None: the hidden size.
    """

    config: TransformerConfig
    outputs: int | None = None

    def __call__(self, x: jax.Array) -> jax.Array:
        return add_parts(self.in_parts(x, False), x.dtype)

    @nn.compact
    def in_parts(self, x: jax.Array, cached: bool) -> jax.Array:
        """Compute the result [S, B, T, E], see `pallas_kernels.reference.add_parts`."""
        gate, up = jnp.split(Linear(2 * self.config.ffn_size, name="gate_up")(x), 2, axis=-1)
        hidden, width = nn.silu(gate) * up, self.outputs or self.config.hidden_size
        return Linear(width, name="down")(hidden, choose_parts(hidden, width, cached))


class DecoderLayer(nn.Module):
    """Pre-norm attention and feed-forward with residual connections.

    `mlp` may be replaced by a sparse layer. With `axis`, this is one device's share of the layer's
    heads and feed-forward, inside `jax.shard_map` over that axis of the mesh.
    """

    config: TransformerConfig
    mlp_class: type[nn.Module] = GatedMLP
    fused_qkv: bool = False
    axis: str | None = None

    def setup(self):
        self.attention_norm = RMSNorm(self.config.norm_eps)
        self.attention = Attention(self.config, self.fused_qkv)
        self.mlp_norm = RMSNorm(self.config.norm_eps)
        self.mlp = self.mlp_class(self.config)

    def __call__(self, x, rope, positions, mask=None, prefix=None, window=None, earlier=None):
        x, parts, new_kv = self.between_norms(
            x, self.attention_norm(x), rope, positions, mask, prefix, window, earlier
        )
        return x + add_parts(parts, x.dtype), new_kv

    def between_norms(self, x, normed, rope, positions, mask, prefix, window=None, earlier=None):
        """Run all between the first norm, whose result is `normed`, and the last addition.

        The norm that follows does that addition, see `RMSNorm.add_normalize`.

        Returns:
          (`x` [B, T, E] after attention; what to add to it [S, B, T, E]; new rows' k and v).
        """
        attended, new_kv = self.attention.in_parts(
            normed, rope, positions, mask, prefix, window, earlier
        )
        cached = prefix is not None
        x, normed = self.mlp_norm.add_normalize(x, self._add_devices(attended, x), cached)
        return x, self._add_devices(self.mlp.in_parts(normed, cached), x), new_kv

    def _add_devices(self, parts: jax.Array, x: jax.Array) -> jax.Array:
        """Add up the shares [S, B, T, E] of all devices, as one part."""
        if self.axis is None:
            return parts
        return jax.lax.psum(add_parts(parts, x.dtype), self.axis)[None]

    def context_kv(self, context: jax.Array, rope) -> tuple[jax.Array, jax.Array]:
        """Compute K and V [B, T, K, D] of context features, skipping the input norm (DFlash)."""
        return self.attention.keys_values(context, rope)
