"""ParallelSpec (Xiao et al. 2024, arXiv 2410.05589): an EAGLE-like drafter that drafts all its
tokens in one forward.

From the paper: mask tokens [MASK]_1 ... [MASK]_{K-1}, each with its own learnt embedding, follow
the last known token at the next positions. One forward under a causal mask predicts a token at each
place. In training several groups of masks share one text and do not see each other (see
`training.drafters.parallelspec`).

Ours, since the paper keeps the architecture of the drafter it starts from and no code was released:
EAGLE-3's layer (three fused target features, attention over [token embedding | feature], 2E wide;
Li et al. 2025), and a learnt vector per mask that replaces its missing feature.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from jaxspec.core.config import FeatureDrafterConfig
from jaxspec.core.state import KVCache
from jaxspec.drafters.pairs import PairLayer
from jaxspec.targets.head import declare_head
from jaxspec.targets.linear import INIT, multiply
from jaxspec.targets.rope import rope_table


@dataclasses.dataclass(frozen=True, kw_only=True)
class ParallelSpecConfig(FeatureDrafterConfig):
    """A ParallelSpec drafter (Xiao et al. 2024): an EAGLE-like layer that fills learned mask tokens
    in one forward.

    Attributes:
      slots: tokens of a draft: one from the last pair and one per mask token.
    """

    slots: int = 4

    @property
    def depth(self) -> int:
        """Return the longest path that can be drafted."""
        return self.slots


class ParallelSpec(PairLayer):
    """The draft network, with the target's token embeddings and its own output projection."""

    config: ParallelSpecConfig

    def setup(self):
        c = self.config
        self.declare_layer()
        self.mask_token = self.param("mask_token", INIT, (c.slots - 1, c.hidden_size))
        self.mask_feature = self.param("mask_feature", INIT, (c.slots - 1, c.hidden_size))
        self.head = declare_head(self, c.hidden_size, c.draft_vocab_size or c.vocab_size)

    def context_kv(
        self, tokens: jax.Array, fused: jax.Array, positions: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Compute keys and values [1, B, T, Kh, D] of pairs from token embeddings and fused
        features [B, T, E] and positions int32 [B, T].

        With one layer they depend only on the pair and its position, so caching them between rounds
        is exact.
        """
        k, v = self.attention.keys_values(
            self.read(tokens, fused), rope_table(positions, self.config)
        )
        return k[None], v[None]

    def __call__(
        self,
        token: jax.Array,
        fused: jax.Array,
        position: jax.Array,
        cache: KVCache,
        first: jax.Array | None = None,
    ) -> jax.Array:
        """Return hidden states [B, K, E] of a draft, after the final norm. Slot k predicts the
        token k + 1 places after `token`.

        Args:
          token: [B, E], token embedding of the last known pair.
          fused: [B, E], fused feature of the last known pair.
          position: int32 [B], its rotary position: the number of pairs before it.
          cache: keys and values of the pairs before it, from `context_kv`.
          first: int32 [B], row of the cache where each sequence begins, for sequences packed into
            one cache (None: row 0).
        """
        batch = token.shape[0]
        masks = (
            jnp.broadcast_to(x, (batch, *x.shape)) for x in (self.mask_token, self.mask_feature)
        )
        tokens, features = (
            jnp.concatenate([x[:, None], m], 1) for x, m in zip((token, fused), masks, strict=True)
        )
        positions = position[:, None] + jnp.arange(self.config.slots)
        prefix = cache.prefix(0, first)
        rope = rope_table(positions, self.config)
        attended, _ = self.attention.in_parts(
            self.read(tokens, features), rope, positions, None, prefix
        )
        x, normed = self.mlp_norm.add_normalize(features, attended, True)
        return self.norm.add_normalize(x, self.mlp.in_parts(normed, True), True)[1]

    def logits(self, hidden: jax.Array) -> jax.Array:
        """Return logits [..., D] of the draft vocabulary from states after the final norm."""
        return multiply(hidden, self.head)
