"""RMSNorm, alone and behind the addition of a product to the residual stream."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxspec.core.config import LayerConfig
from pallas_kernels import residual
from pallas_kernels.reference import Norm, add_parts, normalize, rescale


def norm_of(config: LayerConfig) -> Norm:
    """Return how the norms of a layer compute."""
    return Norm(config.norm_eps, config.norm_centred, config.norm_wide)


class RMSNorm(nn.Module):
    """Root-mean-square norm with statistics in float32.

    With `axis`, the last axis of inputs is shared by the devices of that axis of the mesh, inside
    `jax.shard_map`.
    """

    norm: Norm
    axis: str | None = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        first = nn.initializers.zeros if self.norm.centred else nn.initializers.ones
        scale = self.param("scale", first, (x.shape[-1],))
        if self.axis is None:
            return normalize(x, scale, self.norm)
        x32 = x.astype(jnp.float32)
        square = jax.lax.pmean(jnp.mean(x32 * x32, axis=-1, keepdims=True), self.axis)
        x32 = x32 * jax.lax.rsqrt(square + self.norm.eps)
        return rescale(x32, scale, self.norm, x.dtype)

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
        return kernel(x, parts, self.variables["params"]["scale"], self.norm)


def divide_by_size(x: jax.Array, eps: float) -> jax.Array:
    """Divide `x` [..., D] by its root mean square, in float32: an RMSNorm without a weight."""
    x32 = x.astype(jnp.float32)
    size = jax.lax.rsqrt(jnp.mean(x32 * x32, axis=-1, keepdims=True) + eps)
    return (x32 * size).astype(x.dtype)


def add_normalize(
    norm: RMSNorm | None, x: jax.Array, parts: jax.Array | None, cached: bool
) -> tuple[jax.Array, jax.Array]:
    """Call `norm.add_normalize`; without a norm, return the sum twice. Without `parts`, `x` is the
    sum.
    """
    if parts is None:
        return x, x if norm is None else norm(x)
    if norm is not None:
        return norm.add_normalize(x, parts, cached)
    total = x + add_parts(parts, x.dtype)
    return total, total
