"""GRIFFIN (Hu et al. 2025, arXiv 2502.11018): one decoder layer with two outputs.

Pair i is the target's feature f_i (its hidden state after the final norm) and the next token
x_{i+1}. Of its two outputs, `predict` goes through the target's output projection and proposes
x_{i+2}, and `regress` estimates f_{i+1}. A drafted node reads the `regress` of the pair before it.
The rotary position is i.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxspec.core.config import FeatureDrafterConfig, TransformerConfig
from jaxspec.targets.layers import Attention
from jaxspec.targets.linear import Linear
from jaxspec.targets.mlp import GatedMLP
from jaxspec.targets.norm import RMSNorm, norm_of
from jaxspec.targets.rope import rope_table
from pallas_kernels.reference import add_parts


@dataclasses.dataclass(frozen=True, kw_only=True)
class GriffinConfig(FeatureDrafterConfig):
    """A GRIFFIN drafter. It borrows the target's embeddings and output projection.

    `feature_layers` is (number of target layers,), which means the hidden state after the final
    norm. There is never a bias of o.

    Attributes:
      depth: longest drafted path unless a call says otherwise; each level costs one forward. The
        authors' `depth` of 5 counts the levels below the first one.
    """

    depth: int = 6
    qk_norm: bool = False


class Fusion(nn.Module):
    """The paper's token-guided fusion of a token's embedding and a feature."""

    config: TransformerConfig

    def setup(self):
        c = self.config
        self.fc = Linear(c.hidden_size, bias=True)
        self.norm = RMSNorm(norm_of(c))
        self.input_norm = RMSNorm(norm_of(c))
        self.up = Linear(c.ffn_size)
        self.down = Linear(c.hidden_size)

    def parts(self, tokens: jax.Array, features: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the linear part and what is added to it, [..., E] each.

        One norm serves the linear part, which was normalised before, and the embedding.
        """
        linear = self.fc(jnp.concatenate([tokens, features], axis=-1))
        normed = [self.input_norm(self.norm(linear)), self.input_norm(tokens)]
        return linear, self.down(nn.silu(self.up(jnp.concatenate(normed, axis=-1))))


class PairAttention(Attention):
    """Attention that reads its input without a norm, with biases on q, k and v only."""

    def setup(self):
        c = self.config
        self.q = Linear(c.num_heads * c.head_dim, c.qkv_bias)
        self.kv = Linear(2 * c.num_kv_heads * c.head_dim, c.qkv_bias)
        self.o = Linear(c.hidden_size)

    def project(self, x: jax.Array, rope: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Return rotated q [B, T, H, D] and k, and v [B, T, K, D], of `x` [B, T, E]."""
        return self._project(x, rope, False)[:3]

    def output(self, x: jax.Array) -> jax.Array:
        """Project attended values [B, T, H, D] to [B, T, E]."""
        return self.o(x.reshape(*x.shape[:2], -1))


class GriffinDrafter(nn.Module):
    """The draft network; token embeddings are given to it, and `predict` leaves it unprojected."""

    config: GriffinConfig

    def setup(self):
        c = self.config
        self.fusion = Fusion(c)
        self.attention = PairAttention(c)
        self.mlp_norm = RMSNorm(norm_of(c))
        self.mlp = GatedMLP(c, 2 * c.hidden_size)

    def fuse(self, tokens: jax.Array, features: jax.Array) -> jax.Array:
        """Fuse token embeddings and features [..., E] to the layer's inputs [..., E]."""
        linear, added = self.fusion.parts(tokens, features)
        return linear + added

    def __call__(
        self,
        tokens: jax.Array,
        features: jax.Array,
        positions: jax.Array,
        mask: jax.Array | None = None,
        prefix: tuple[Any, ...] | None = None,
        earlier: tuple[jax.Array, jax.Array, jax.Array] | None = None,
    ) -> tuple[tuple[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]:
        """Compute outputs and rotated keys and values of T pairs.

        Args:
          tokens: [B, T, E], embeddings of the tokens.
          features: [B, T, E], of the target, or `regress` of this function.
          positions: int32 [B, T], rotary positions.
          mask: see `pallas_kernels.reference.tree_attention`.
          prefix: see `pallas_kernels.reference.tree_attention`.
          earlier: see `jaxspec.targets.layers.behind`.

        Returns:
          ((predict, regress) [B, T, E] each; (k, v) [B, T, K, D]).
        """
        x, cached = self.fuse(tokens, features), prefix is not None
        rope = rope_table(positions, self.config)
        attended, new_kv = self.attention.in_parts(x, rope, positions, mask, prefix, None, earlier)
        return self._split(x, attended, cached), new_kv

    def project(self, x: jax.Array, positions: jax.Array) -> tuple[jax.Array, ...]:
        """Return rotated q, k, and v of fused pairs [B, T, E], for attention that training does."""
        return self.attention.project(x, rope_table(positions, self.config))

    def finish(self, x: jax.Array, attended: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return (predict, regress) [B, T, E] of fused pairs and attended values [B, T, H, D]."""
        return self._split(x, self.attention.output(attended)[None], False)

    def _split(
        self, x: jax.Array, attended: jax.Array, cached: bool
    ) -> tuple[jax.Array, jax.Array]:
        """Add attention and the feed-forward of two halves: one for each output."""
        x, normed = self.mlp_norm.add_normalize(x, attended, cached)
        predict, regress = jnp.split(add_parts(self.mlp.in_parts(normed, cached), x.dtype), 2, -1)
        return x + predict, x + regress
