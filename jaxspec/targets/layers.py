"""Decoder layers shared by targets and drafters: RMSNorm, RoPE, attention, gated feed-forward.

Projections that read the same input are fused. Drafters keep q apart from k and v, because they
project k and v of context features alone. Weights are stored [in, out]. The scales of quantised
weights are in a collection of their own, under the same names (see `jaxspec.targets.quant`).
"""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.core.config import TransformerConfig
from jaxspec.targets import panels
from jaxspec.targets.attention import attend
from pallas_kernels.heads import find_kernel
from pallas_kernels.reference import apply_rope, normalize

_INIT = nn.initializers.normal(0.02)


class RMSNorm(nn.Module):
    """Root-mean-square norm with statistics in float32.

    As in Qwen3RMSNorm, the normalised input is rounded before it is multiplied by the weight.
    """

    eps: float

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        scale = self.param("scale", nn.initializers.ones, (x.shape[-1],))
        return normalize(x, scale, self.eps)


def scale_of(module: nn.Module, name: str) -> jax.Array | None:
    """Return the scale per output channel, float32, of a parameter; None if it is not quantised."""
    return module.get_variable("quant", name)


def panels_of(module: nn.Module, name: str) -> jax.Array | None:
    """Return a parameter's panels for few rows on a CPU; None if it has none."""
    return module.get_variable(panels.COLLECTION, name)


def multiply_kernel(
    x: jax.Array,
    kernel: jax.Array,
    scale: jax.Array | None = None,
    axis: int = 0,
    few: jax.Array | None = None,
) -> jax.Array:
    """Multiply `x` [..., in] by a matrix; its `axis` is the input.

    A quantised kernel has a `scale` per output. XLA reads its values as stored and converts them
    inside the product. Sums stay float32 until they are scaled, because unscaled sums exceed
    float16's range.

    Args:
      few: the matrix in panels, which products of few rows read (`jaxspec.targets.panels`).

    Returns:
      [..., out] in x's dtype.
    """
    if few is not None and panels.serves(x):
        return panels.multiply_panels(x, few)
    inputs = (((x.ndim - 1,), (axis,)), ((), ()))
    if scale is None:
        return jax.lax.dot_general(x, kernel, inputs)
    return scaled(
        jax.lax.dot_general(x, kernel.astype(x.dtype), inputs, preferred_element_type=jnp.float32),
        scale,
        x.dtype,
    )


def scaled(sums: jax.Array, scale: jax.Array, dtype) -> jax.Array:
    """Scale and round float32 sums over quantised weights."""
    return (sums * scale).astype(dtype)


class Linear(nn.Module):
    """`x @ kernel (+ bias)`, kernel [in, out]."""

    features: int
    bias: bool = False

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        kernel = self.param("kernel", _INIT, (x.shape[-1], self.features))
        few = panels_of(self, "kernel")
        y = multiply_kernel(x, kernel, scale_of(self, "kernel"), few=few)
        return y + self.param("bias", nn.initializers.zeros, (self.features,)) if self.bias else y


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
        projected = (self.qkv(x),) if self.fused else (self.q(x), self.kv(x))
        q, k, v = self._split(projected, rope, prefix is not None)
        keys, values = (k, v) if earlier is None else behind(earlier, k, v)
        out = attend(q, keys, values, positions, mask=mask, prefix=prefix, window=window)
        return self.o(out.reshape(*x.shape[:2], -1)), (k, v)

    def _split(self, projected, rope, cached: bool) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Split projections into q [B, T, H, D], k and v [B, T, K, D]; rotate q and k."""
        c = self.config
        # Prompts and training without a cache are left to XLA: their rows are many.
        split = find_kernel(projected[0].dtype, c.head_dim) if cached else None
        if split is not None and not self.is_initializing():
            norms = (self.q_norm, self.k_norm) if c.qk_norm else ()
            scales = tuple(norm.variables["params"]["scale"] for norm in norms) or None
            sizes = c.num_heads, c.num_kv_heads, c.head_dim
            # XLA makes one product of two, and then needs no concatenation.
            return split(jnp.concatenate(projected, axis=-1), rope, scales, sizes, c.norm_eps)
        q, kv = (
            jnp.split(projected[0], [c.num_heads * c.head_dim], axis=-1)
            if self.fused
            else projected
        )
        q = q.reshape(*q.shape[:2], c.num_heads, c.head_dim)
        q = apply_rope(self.q_norm(q) if c.qk_norm else q, rope)
        return q, *self._rotated(kv, rope)


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
    """`down(silu(gate(x)) * up(x))` with gate and up fused."""

    config: TransformerConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        gate, up = jnp.split(Linear(2 * self.config.ffn_size, name="gate_up")(x), 2, axis=-1)
        return Linear(self.config.hidden_size, name="down")(nn.silu(gate) * up)


class DecoderLayer(nn.Module):
    """Pre-norm attention and feed-forward with residual connections.

    `mlp` may be replaced by a sparse layer.
    """

    config: TransformerConfig
    mlp_class: type[nn.Module] = GatedMLP
    fused_qkv: bool = False

    def setup(self):
        self.attention_norm = RMSNorm(self.config.norm_eps)
        self.attention = Attention(self.config, self.fused_qkv)
        self.mlp_norm = RMSNorm(self.config.norm_eps)
        self.mlp = self.mlp_class(self.config)

    def __call__(self, x, rope, positions, mask=None, prefix=None, window=None, earlier=None):
        attended, new_kv = self.attention(
            self.attention_norm(x), rope, positions, mask, prefix, window, earlier
        )
        x = x + attended
        return x + self.mlp(self.mlp_norm(x)), new_kv

    def context_kv(self, context: jax.Array, rope) -> tuple[jax.Array, jax.Array]:
        """Compute K and V [B, T, K, D] of context features, skipping the input norm (DFlash)."""
        return self.attention.keys_values(context, rope)
