"""Falcon (Gao et al. 2024, arXiv 2412.12639): semi-autoregressive drafting, K tokens per forward.

A row is a pair: the target's features of a token and the token after it. A block is the last K
pairs of a text. An LSTM runs over the pairs. A decoder layer follows; its rows see everything
before the block and the whole block (the relaxed causal mask). Row i of the block predicts the
token K places after its own, so the rows together predict the next K tokens. For the next forward
the chosen tokens become pairs, with the rows' outputs as features.

This follows the paper and its released code, as does the LSTM of two layers. Four things are ours:
- three fused target features, with norms before the LSTM; the paper reads the last hidden state;
- the LSTM's output is added to the feature;
- the drafter has its own output projection with an optional draft vocabulary, as in EAGLE-3, so
  that drafters can be compared; the paper uses the target's projection;
- blocks end at the node drafted from; they do not tile the text from its beginning, so no text is
  left between two blocks.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxspec.core.config import FeatureDrafterConfig
from jaxspec.targets.head import declare_head
from jaxspec.targets.layers import DecoderLayer
from jaxspec.targets.linear import Linear, multiply
from jaxspec.targets.norm import RMSNorm, norm_of
from jaxspec.targets.rope import rope_table


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class FalconConfig(FeatureDrafterConfig):
    """A Falcon drafter (Gao et al. 2024): an LSTM and a decoder layer with a relaxed causal mask,
    which draft `slots` tokens per forward.

    Attributes:
      slots: K, tokens per forward.
      blocks: consecutive forwards on a path unless a call says otherwise.
      lstm_size: width of the LSTM.
      lstm_layers: number of layers of the LSTM.
    """

    slots: int = 2
    blocks: int = 3
    lstm_size: int = 0
    lstm_layers: int = 2

    @property
    def depth(self) -> int:
        """Return the longest path that a round drafts unless a call says otherwise."""
        return self.slots * self.blocks


class Falcon(nn.Module):
    """The draft network, with the target's token embeddings and its own output projection."""

    config: FalconConfig

    def setup(self):
        c = self.config
        self.fc = Linear(c.hidden_size)
        self.token_norm = RMSNorm(norm_of(c))
        self.feature_norm = RMSNorm(norm_of(c))
        self.lstm = LSTM(c.lstm_size, c.lstm_layers)
        self.mix = Linear(c.hidden_size)
        self.layer = DecoderLayer(c)
        self.norm = RMSNorm(norm_of(c))
        self.head = declare_head(self, c.hidden_size, c.draft_vocab_size or c.vocab_size)

    def fuse(self, features: jax.Array) -> jax.Array:
        """Fuse target features [..., len(feature_layers) * Et] to [..., E]."""
        return self.fc(features)

    def read(
        self,
        tokens: jax.Array,
        features: jax.Array,
        memory: jax.Array,
        restart: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array]:
        """Run the LSTM over T pairs.

        Args:
          tokens: [B, T, E], token embeddings.
          features: [B, T, E], fused features, or outputs of earlier rows.
          memory: [B, Z], the LSTM's state before the pairs.
          restart: bool [B, T], rows before which the LSTM's state is reset, or None.

        Returns:
          (inputs of the decoder layer [B, T, E], the LSTM's state after every row [B, T, Z]).
        """
        wide = jnp.concatenate([self.token_norm(tokens), self.feature_norm(features)], axis=-1)
        out, memory = self.lstm(wide, memory, restart)
        return features + self.mix(out), memory

    def context_kv(self, x: jax.Array, positions: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Compute keys and values [1, B, T, Kh, D] of rows from `read`. With one layer they do not
        depend on blocks.
        """
        rope = rope_table(positions, self.config)
        k, v = self.layer.attention.keys_values(self.layer.attention_norm(x), rope)
        return k[None], v[None]

    def __call__(
        self,
        x: jax.Array,
        positions: jax.Array,
        mask: jax.Array | None,
        prefix: tuple[Any, ...] | None,
        earlier: tuple[jax.Array, jax.Array, jax.Array] | None = None,
    ) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        """Compute outputs [B, T, E] of rows from `read`, and keys and values [1, B, T, Kh, D].

        `positions` int32 [B, T] holds, for each pair, the number of pairs before it. For `mask`,
        `prefix` and `earlier` see `jaxspec.targets.layers.Attention`.
        """
        hidden, (k, v) = self.layer(
            x, rope_table(positions, self.config), positions, mask, prefix, earlier=earlier
        )
        return hidden, (k[None], v[None])

    def logits(self, hidden: jax.Array) -> jax.Array:
        """Return logits [..., D] of the draft vocabulary from outputs [..., E]."""
        return multiply(self.normed(hidden), self.head)

    def normed(self, hidden: jax.Array) -> jax.Array:
        """Apply the final norm to outputs; the output projection reads the result."""
        return self.norm(hidden)
