"""The dense gated feed-forward of a layer."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxspec.core.config import LayerConfig
from jaxspec.targets.linear import Linear
from pallas_kernels import residual
from pallas_kernels.reference import Gate, add_parts, gate_units


class GatedMLP(nn.Module):
    """`down(activation(gate(x)) * up(x))` with gate and up fused.

    Attributes:
      outputs: width of the result; None: the hidden size.
    """

    config: LayerConfig
    outputs: int | None = None

    def __call__(self, x: jax.Array) -> jax.Array:
        return add_parts(self.in_parts(x, False), x.dtype)

    @nn.compact
    def in_parts(self, x: jax.Array, cached: bool) -> jax.Array:
        """Compute the result [S, B, T, E], see `pallas_kernels.reference.add_parts`."""
        gate, up = jnp.split(Linear(2 * self.config.ffn_size, name="gate_up")(x), 2, axis=-1)
        hidden = gate_units(gate, up, Gate(self.config.activation))
        width = self.outputs or self.config.hidden_size
        return Linear(width, name="down")(hidden, choose_parts(hidden, width, cached))


def choose_parts(x: jax.Array, outputs: int, cached: bool) -> int:
    """Choose the number of parts of a product of `x` [B, T, in], which the next kernel adds up."""
    if not cached or residual.find_kernel(x.dtype) is None:
        return 1
    return residual.count_parts(x.shape[0] * x.shape[1], x.shape[2], outputs)
