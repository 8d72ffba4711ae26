"""EAGLE-3 (Li et al. 2025): one decoder layer that drafts a token at a time, feeding its own output
back as the next feature.

Pair i is the target's feature h_i of token x_i with the token x_{i+1} after it; the layer's output
for it predicts x_{i+2}. Its rotary position is i. Committed pairs have features of the target;
those of drafted nodes are the output of the pair before.
"""

from __future__ import annotations

import functools

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from jaxspec.core.cache import allocate, append
from jaxspec.core.config import EagleConfig
from jaxspec.core.state import KVCache
from jaxspec.drafters import scratch as rows_of
from jaxspec.drafters.base import Drafter, Proposal
from jaxspec.drafters.pairs import check_layers, last_row, spread
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

    def __call__(self, tokens, features, positions, mask=None, prefix=None, earlier=None):
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


@flax.struct.dataclass
class EagleState:
    """What is kept between rounds.

    Attributes:
      cache: keys and values of the committed pairs; their number is the root's position.
      hidden: [B, E], the last pair's output, from which the root's proposal and its nodes' features
        come.
    """

    cache: KVCache
    hidden: jax.Array


@functools.lru_cache(maxsize=64)
def make_eagle_drafter(config: EagleConfig) -> Drafter:
    """EAGLE-3: the root's proposal costs no forward of its own, every further level one.

    Cached: equal configs give the identical bundle.

    Raises:
      ValueError: more than one layer.
    """
    check_layers(config.num_layers, "EAGLE-3")
    module = EagleDrafter(config)

    def propose(params, hidden):
        logits = spread(params, module.apply(params, hidden, method="logits"), config.vocab_size)
        return Proposal(logits[:, :, None], hidden=hidden[:, :, None])

    def init(batch, capacity, dtype):
        return EagleState(
            allocate(config, batch, capacity, dtype), jnp.zeros((batch, config.hidden_size), dtype)
        )

    def absorb(params, state, target, new):
        features = module.apply(params, new.features, method="fuse")
        positions = new.position[:, None] + jnp.arange(new.token.shape[1])
        prefix = (state.cache.k, state.cache.v, 0, state.cache.length, None)
        hidden, (k, v) = module.apply(
            params, target.embed(new.following), features, positions, prefix=prefix
        )
        last = last_row(hidden, new.count, state.hidden)
        return EagleState(append(state.cache, k[None], v[None], new.count), last)

    def start(params, state, target, root, rows):
        c, hidden = config, state.hidden[:, None]
        # Row 0 stands for the last pair. Its keys and values are in the cache, so the rows below
        # must not see it here too.
        scratch = rows_of.empty(
            1, root.shape[0], rows, c.num_kv_heads, c.head_dim, c.hidden_size, hidden.dtype
        )
        return propose(params, hidden), scratch.replace(hidden=scratch.hidden.at[:, :1].set(hidden))

    def expand(params, state, scratch, target, nodes, first):
        scratch = rows_of.look(scratch, nodes.source, 1, first)
        mask = rows_of.mask_words(scratch, nodes.token.shape[1], first)
        features = jnp.take_along_axis(scratch.hidden, nodes.source[..., None], axis=1)
        positions = state.cache.length[:, None] + nodes.depth - 1
        prefix = (state.cache.k, state.cache.v, 0, state.cache.length, None)
        earlier = (scratch.k[0], scratch.v[0], first)
        embedded = target.embed(nodes.token)
        hidden, (k, v) = module.apply(params, embedded, features, positions, mask, prefix, earlier)
        return propose(params, hidden), rows_of.write(scratch, k[None], v[None], hidden, first)

    return Drafter(config.feature_layers, config.depth, 1, init, absorb, start, expand)
