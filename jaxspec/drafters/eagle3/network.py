"""EAGLE-3 (Li et al. 2025): one decoder layer that drafts one token at a time and feeds its own
output back as the next feature.

Pair i is the target's feature h_i of token x_i and the next token x_{i+1}; the layer's output for
it predicts x_{i+2}. Its rotary position is i. Committed pairs have features of the target; the
feature of a drafted node is the output of the pair before it.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxspec.core.config import FeatureDrafterConfig
from jaxspec.drafters.pairs import PairLayer
from jaxspec.targets.attention import mask_window
from jaxspec.targets.head import declare_head
from jaxspec.targets.linear import multiply
from jaxspec.targets.norm import RMSNorm, norm_of
from jaxspec.targets.rope import rope_table
from pallas_kernels.reference import add_parts


@dataclasses.dataclass(frozen=True, kw_only=True)
class EagleConfig(FeatureDrafterConfig):
    """An EAGLE-3 drafter (Li et al. 2025): one decoder layer.

    Its attention reads [token embedding | feature], 2E wide.

    Attributes:
      depth: longest drafted path unless a call says otherwise; each level costs one forward.
      norm_before_residual: whether the residual connection carries the feature after its norm (a
        choice of the speculators schema).
      own_embeddings: rows of the drafter's own embedding table, which a drafter needs that is
        narrower or wider than its target; 0: it reads the target's.
      fusion_norm: norm of the target features before they are fused: `whole`, one over their
        concatenation (speculators' `norm_before_fc`); `each`, one over each (EAGLE-3.1's
        `fc_norm`); None: they are not normalised.
      norm_output: whether the feature of the pairs that follow is the output after the final norm
        (EAGLE-3.1).
    """

    depth: int = 8
    norm_before_residual: bool = False
    own_embeddings: int = 0
    fusion_norm: str | None = None
    norm_output: bool = False


class EagleDrafter(PairLayer):
    """The draft network: its own output projection, and token embeddings that it is given."""

    config: EagleConfig

    def setup(self):
        c = self.config
        self.declare_layer()
        count = {"whole": 1, "each": len(c.feature_layers)}.get(c.fusion_norm, 0)
        self.fusion_norm = [RMSNorm(norm_of(c)) for _ in range(count)]
        self.head = declare_head(self, c.hidden_size, c.draft_vocab_size or c.vocab_size)

    def __call__(
        self,
        tokens: jax.Array,
        features: jax.Array,
        positions: jax.Array,
        mask: jax.Array | None = None,
        prefix: tuple[Any, ...] | None = None,
        earlier: tuple[jax.Array, jax.Array, jax.Array] | None = None,
    ) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        """Compute outputs and rotated keys and values of T pairs.

        Args:
          tokens: [B, T, E], embeddings of the tokens.
          features: [B, T, E], from `fuse`, or from `feed` of outputs of this function.
          positions: int32 [B, T], rotary positions.
          mask: see `pallas_kernels.reference.tree_attention`.
          prefix: see `pallas_kernels.reference.tree_attention`.
          earlier: see `jaxspec.targets.layers.behind`.

        Returns:
          (outputs [B, T, E] before the final norm; (k, v) [B, T, K, D]).
        """
        normed = self.feature_norm(features)
        wide, rope = (
            jnp.concatenate([self.token_norm(tokens), normed], axis=-1),
            rope_table(positions, self.config),
        )
        cached = prefix is not None
        window = self.config.window
        if window is not None and earlier is None:  # no drafted path is as long as a window
            mask = mask_window(mask, positions, positions, window)
        attended, new_kv = self.attention.in_parts(
            wide, rope, positions, mask, prefix, window, earlier
        )
        x = normed if self.config.norm_before_residual else features
        x, normed = self.mlp_norm.add_normalize(x, attended, cached)
        return x + add_parts(self.mlp.in_parts(normed, cached), x.dtype), new_kv

    def keys_values(
        self, tokens: jax.Array, features: jax.Array, positions: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Compute only the keys and values of `__call__`."""
        rope = rope_table(positions, self.config)
        return self.attention.keys_values(self.read(tokens, features), rope)

    def fuse(self, features: jax.Array) -> jax.Array:
        """Fuse target features [..., len(feature_layers) * Et] to [..., E]."""
        if self.fusion_norm:
            parts = jnp.split(features, len(self.fusion_norm), axis=-1)
            normed = [norm(part) for norm, part in zip(self.fusion_norm, parts, strict=True)]
            features = jnp.concatenate(normed, axis=-1)
        return self.fc(features)

    def feed(self, hidden: jax.Array) -> jax.Array:
        """Return the features [..., E] of the pairs that follow those with outputs `hidden`."""
        return self.norm(hidden) if self.config.norm_output else hidden

    def final(self, hidden: jax.Array) -> jax.Array:
        """Apply the final norm to outputs [..., E]; the output projection reads the result."""
        return self.norm(hidden)

    def logits(self, hidden: jax.Array) -> jax.Array:
        """Return logits [..., D] of the draft vocabulary from outputs [..., E]."""
        return multiply(self.norm(hidden), self.head)
