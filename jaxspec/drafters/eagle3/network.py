"""EAGLE-3 (Li et al. 2025): one decoder layer that drafts a token at a time, feeding its own output
back as the next feature.

Pair i is the target's feature h_i of token x_i with the token x_{i+1} after it; the layer's output
for it predicts x_{i+2}. Its rotary position is i. Committed pairs have features of the target;
those of drafted nodes are the output of the pair before.
"""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxspec.drafters.eagle3.config import EagleConfig
from jaxspec.targets.layers import Attention, GatedMLP, Linear, RMSNorm, rope_table


class EagleDrafter(nn.Module):
    """The draft network; token embeddings are the target's, the output projection is its own."""

    config: EagleConfig

    def setup(self):
        c = self.config
        self.fc = Linear(c.hidden_size)
        self.token_norm = RMSNorm(c.norm_eps)
        self.feature_norm = RMSNorm(c.norm_eps)
        self.attention = Attention(c)
        self.mlp_norm = RMSNorm(c.norm_eps)
        self.mlp = GatedMLP(c)
        self.norm = RMSNorm(c.norm_eps)
        size = c.draft_vocab_size or c.vocab_size
        self.lm_head = self.param("lm_head", nn.initializers.normal(0.02), (c.hidden_size, size))

    def fuse(self, features: jax.Array) -> jax.Array:
        """Features [B, T, E] of target features [B, T, len(feature_layers) * Et]; the drafter's own
        skip this.
        """
        return self.fc(features)

    def __call__(
        self,
        tokens: jax.Array,
        features: jax.Array,
        positions: jax.Array,
        mask: jax.Array | None = None,
        prefix: tuple[Any, ...] | None = None,
        earlier: tuple[jax.Array, jax.Array, jax.Array] | None = None,
    ) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        """Outputs and rotated keys and values of T pairs.

        Args:
          tokens: [B, T, E], the target's embeddings.
          features: [B, T, E], from `fuse` or outputs of this.
          positions: int32 [B, T], rotary positions.
          mask, prefix: see `pallas_kernels.reference.tree_attention`. earlier: see
            `jaxspec.targets.layers.behind`.

        Returns:
          (outputs [B, T, E] before the final norm, which are features of the pairs that follow; (k,
          v) [B, T, K, D]).
        """
        normed = self.feature_norm(features)
        wide, rope = (
            jnp.concatenate([self.token_norm(tokens), normed], axis=-1),
            rope_table(positions, self.config),
        )
        attended, new_kv = self.attention(wide, rope, positions, mask, prefix, None, earlier)
        x = (normed if self.config.norm_before_residual else features) + attended
        return x + self.mlp(self.mlp_norm(x)), new_kv

    def keys_values(
        self, tokens: jax.Array, features: jax.Array, positions: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """The keys and values alone of what `__call__` computes."""
        wide = jnp.concatenate([self.token_norm(tokens), self.feature_norm(features)], axis=-1)
        return self.attention.keys_values(wide, rope_table(positions, self.config))

    def final(self, hidden: jax.Array) -> jax.Array:
        """Outputs [..., E] after the final norm, which the output projection reads."""
        return self.norm(hidden)

    def logits(self, hidden: jax.Array) -> jax.Array:
        """Logits [..., D] of the draft vocabulary, from outputs [..., E]."""
        return self.norm(hidden) @ self.lm_head
