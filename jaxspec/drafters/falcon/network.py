"""Falcon (Gao et al. 2024, arXiv 2412.12639): semi-autoregressive drafting, K tokens a forward,
each forward after the last.

A row is a pair: the target's features of a token and the token after it. A block is the last K
pairs of a text. An LSTM runs over the pairs, a decoder layer follows whose rows see everything
before the block and the whole block (the relaxed causal mask), and row i of the block predicts the
token K places after its own: together the next K tokens. For the next forward the chosen tokens
become pairs with the rows' outputs as features.

From the paper and its released code: all of that, and an LSTM of two layers. Ours: three fused
target features with norms in front of the LSTM, its output added to the feature, an output
projection of its own with an optional draft vocabulary (as EAGLE-3, so that drafters compare; the
paper reads the last hidden state and borrows the target's projection), and blocks that end at the
drafted-from node instead of tiling the text from its beginning, so that no text falls between two
blocks.
"""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxspec.drafters.falcon.config import FalconConfig
from jaxspec.drafters.falcon.lstm import LSTM
from jaxspec.targets.layers import _INIT, DecoderLayer, Linear, RMSNorm, rope_table


class Falcon(nn.Module):
    """The draft network; token embeddings are the target's, the output projection is its own."""

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
        self.lm_head = self.param(
            "lm_head", _INIT, (c.hidden_size, c.draft_vocab_size or c.vocab_size)
        )

    def fuse(self, features: jax.Array) -> jax.Array:
        """Fused features [..., E] of target features [..., len(feature_layers) * Et]."""
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
          tokens, features: [B, T, E], embeddings, and fused features or outputs of earlier rows.
          memory: [B, Z], the LSTM's state before them. restart: bool [B, T], rows before which it
            is forgotten, or None.

        Returns:
          (what the decoder layer reads [B, T, E], the LSTM's state after every row [B, T, Z]).
        """
        wide = jnp.concatenate([self.token_norm(tokens), self.feature_norm(features)], axis=-1)
        out, memory = self.lstm(wide, memory, restart)
        return features + self.mix(out), memory

    def context_kv(self, x: jax.Array, positions: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Keys and values [1, B, T, Kh, D] of rows from `read`: with one layer they do not depend
        on blocks.
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
        """Outputs [B, T, E] of rows from `read`, and their keys and values [1, B, T, Kh, D].

        `positions` int32 [B, T]: a pair's is the number of pairs before it. `mask`, `prefix` and
        `earlier` as of `jaxspec.targets.layers.Attention`.
        """
        hidden, (k, v) = self.layer(
            x, rope_table(positions, self.config), positions, mask, prefix, earlier=earlier
        )
        return hidden, (k[None], v[None])

    def logits(self, hidden: jax.Array) -> jax.Array:
        """Logits [..., D] of the draft vocabulary, from outputs."""
        return self.normed(hidden) @ self.lm_head

    def normed(self, hidden: jax.Array) -> jax.Array:
        """What the output projection reads."""
        return self.norm(hidden)
