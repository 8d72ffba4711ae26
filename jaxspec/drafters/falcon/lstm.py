"""LSTM layers (Hochreiter and Schmidhuber 1997, with Gers et al.'s forget gate) over the rows of a
text.
"""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp


def _bias(key: jax.Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> jax.Array:
    """Initialize biases to zero, and to one for the forget gate, so that memory is kept at first
    (Jozefowicz et al. 2015).
    """
    return jnp.zeros(shape, dtype).reshape(4, -1).at[1].set(1).reshape(shape)


class LSTMLayer(nn.Module):
    """One layer; the gates are in the order input, forget, cell, output."""

    size: int

    @nn.compact
    def __call__(
        self, x: jax.Array, hidden: jax.Array, cell: jax.Array, restart: jax.Array | None = None
    ) -> tuple[jax.Array, jax.Array]:
        lecun, orthogonal = nn.initializers.lecun_normal(), nn.initializers.orthogonal()
        gates = x @ self.param("kernel", lecun, (x.shape[-1], 4 * self.size)) + self.param(
            "bias", _bias, (4 * self.size,)
        )
        recurrent = self.param("recurrent", orthogonal, (self.size, 4 * self.size))

        def step(carry: tuple[Any, Any], row: tuple[Any, Any]) -> tuple[Any, Any]:
            gate, again = row
            if again is not None:
                carry = tuple(jnp.where(again[:, None], 0, part) for part in carry)
            enter, keep, new, leave = jnp.split(gate + carry[0] @ recurrent, 4, axis=-1)
            memory = nn.sigmoid(keep) * carry[1] + nn.sigmoid(enter) * jnp.tanh(new)
            carry = (nn.sigmoid(leave) * jnp.tanh(memory), memory)
            return carry, carry

        rows = (gates.swapaxes(0, 1), None if restart is None else restart.T)
        few = x.shape[1] <= 8  # drafting: a loop would cost more than its steps
        _, (hidden, cell) = jax.lax.scan(
            step, (hidden, cell), rows, unroll=x.shape[1] if few else 1
        )
        return hidden.swapaxes(0, 1), cell.swapaxes(0, 1)


class LSTM(nn.Module):
    """A stack of layers, without dropout.

    Attributes:
      size: W, width of every layer.
      layers: number of layers.
    """

    size: int
    layers: int

    @nn.compact
    def __call__(
        self, x: jax.Array, memory: jax.Array, restart: jax.Array | None = None
    ) -> tuple[jax.Array, jax.Array]:
        """Run over T rows.

        Args:
          x: [B, T, I], inputs.
          memory: [B, 2 * layers * W], output and cell of each layer before row 0.
          restart: bool [B, T], rows before which the memory is reset to zero; None: no rows.

        Returns:
          (outputs of the last layer [B, T, W], memory after every row [B, T, 2 * layers * W]).
        """
        parts, after = jnp.split(memory, 2 * self.layers, axis=-1), []
        for i in range(self.layers):
            x, cell = LSTMLayer(self.size, name=f"layer_{i}")(
                x, parts[2 * i], parts[2 * i + 1], restart
            )
            after += [x, cell]
        return x, jnp.concatenate(after, axis=-1)
