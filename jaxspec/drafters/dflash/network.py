"""The network of block drafters: DFlash, and with one flag the JetSpec causal head.

A block is the last committed token (the anchor) followed by mask tokens. One forward over the block
predicts all slots at once; its context is keys and values of fused target features. Slot k proposes
the token k positions after the anchor. In DFlash (Chen et al. 2026) every slot sees the whole
block; in JetSpec's head slot i sees slots 0..i.
"""

from __future__ import annotations

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxspec.core.config import DrafterConfig, TransformerConfig
from jaxspec.core.state import KVCache
from jaxspec.targets.attention import full_mask
from jaxspec.targets.layers import DecoderLayer
from jaxspec.targets.linear import Linear
from jaxspec.targets.norm import RMSNorm, norm_of
from jaxspec.targets.rope import rope_table


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockDrafterConfig(TransformerConfig, DrafterConfig):
    """A DFlash drafter, or with `causal=True` a JetSpec causal parallel head.

    Attributes:
      block_size: slots of a block, the anchor included: `block_size - 1` tokens are drafted.
      mask_token_id: token whose row of the target's embedding table fills the slots after the
        anchor.
      causal: whether slot i attends to block slots 0..i instead of the whole block.
      sliding_window: (window, one bool per layer), or None when every layer sees the whole context.
      target_hidden_size: width of a target feature.
      builder: builder of calls that name none, such as `expand/w7`; empty: that of its record.
    """

    block_size: int = 16
    mask_token_id: int = 0
    causal: bool = False
    sliding_window: tuple[int, tuple[bool, ...]] | None = None
    target_hidden_size: int = 0
    builder: str = ""

    @property
    def depth(self) -> int:
        """Return the longest path that can be drafted from one block."""
        return self.block_size - 1


class BlockDrafter(nn.Module):
    """The draft network; embeddings and the output projection are the target's."""

    config: BlockDrafterConfig

    def setup(self):
        c = self.config
        self.fc = Linear(c.hidden_size)
        self.context_norm = RMSNorm(norm_of(c))
        self.layers = [self.make_layer() for _ in range(c.num_layers)]
        self.norm = RMSNorm(norm_of(c))

    def make_layer(self) -> DecoderLayer:
        """Make a layer; networks that change it override this."""
        return DecoderLayer(self.config)

    def context(self, features: jax.Array) -> jax.Array:
        """Fuse target features [B, T, len(feature_layers) * Et] to the context [B, T, E] that every
        layer reads.
        """
        return self.context_norm(self.fc(features))

    def context_kv(self, features: jax.Array, positions: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Compute keys and values [L, B, T, K, D] of committed tokens from their target features.

        They depend only on features and absolute positions (int32 [B, T]), so caching them between
        rounds is exact.
        """
        context, rope = self.context(features), rope_table(positions, self.config)
        keys, values = [], []
        for layer in self.layers:
            k, v = layer.context_kv(context, rope)
            # One layer after the other. Otherwise XLA joins their products, and copies the weights
            # of all layers into one array to do so.
            context, k = jax.lax.optimization_barrier((context, k))
            keys.append(k)
            values.append(v)
        return jnp.stack(keys), jnp.stack(values)

    def __call__(
        self,
        block: jax.Array,
        positions: jax.Array,
        cache: KVCache,
        first: jax.Array | None = None,
        size: jax.Array | None = None,
    ) -> jax.Array:
        """Return hidden states [B, T, E] of a block, after the final norm.

        Args:
          block: [B, T, E], target embeddings of the anchor and of the mask tokens.
          positions: int32 [B, T]; the anchor's is the number of committed tokens before it.
          cache: context keys and values from `context_kv`.
          first: int32 [B], row of the cache where each sequence begins, for sequences packed into
            one cache (None: row 0).
          size: int32 [B], number of slots that belong to the block; no slot sees later ones (None:
            all T).
        """
        return self._run(block, positions, cache, first, size)[1]

    def residual(
        self,
        block: jax.Array,
        positions: jax.Array,
        cache: KVCache,
        first: jax.Array | None = None,
    ) -> jax.Array:
        """Return hidden states [B, T, E] of a block before the final norm; see `__call__`."""
        return self._run(block, positions, cache, first, None)[0]

    def _run(self, block, positions, cache, first, size) -> tuple[jax.Array, jax.Array]:
        """Return hidden states [B, T, E] (before the final norm, after it)."""
        rope = rope_table(positions, self.config)
        mask = None if self.config.causal else full_mask(*block.shape[:2], size)
        x, norms = block, [*(layer.attention_norm for layer in self.layers), self.norm]
        normed = norms[0](x)
        for i, layer in enumerate(self.layers):
            prefix = cache.prefix(i, first)
            x, parts, _ = layer.between_norms(
                x, normed, rope, positions, mask, prefix, self._window(i)
            )
            x, normed = norms[i + 1].add_normalize(x, parts, True)
        return x, normed

    def _window(self, layer: int) -> int | None:
        if self.config.sliding_window is None:
            return None
        window, sliding = self.config.sliding_window
        return window if sliding[layer] else None
