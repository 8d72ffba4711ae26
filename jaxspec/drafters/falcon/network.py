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

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxspec.drafters.falcon.config import FalconConfig
from jaxspec.drafters.falcon.lstm import LSTM
from jaxspec.targets.head import declare_head
from jaxspec.targets.layers import DecoderLayer, RMSNorm, rope_table
from jaxspec.targets.linear import Linear, multiply


class Falcon(nn.Module):
    """The draft network, with the target's token embeddings and its own output projection."""

    config: FalconConfig

    def setup(self):
        c = self.config
        self.fc = Linear(c.hidden_size)
        self.token_norm = RMSNorm(c.norm_eps)
        self.feature_norm = RMSNorm(c.norm_eps)
        self.lstm = LSTM(c.lstm_size, c.lstm_layers)
        self.mix = Linear(c.hidden_size)
        self.layer = DecoderLayer(c)
        self.norm = RMSNorm(c.norm_eps)
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
