"""SpecBlock: blocks of K tokens drafted at once, each from any position of an earlier block of the
same path.

Pair i is the target's feature h_i of token x_i with the token x_{i+1} after it. It is read at K
slots that differ in a learned query alone ("prefix broadcast"); slot k predicts x_{i+2+k}, at
rotary position i + 1 + k. Before each decoder layer but the first a slot is mixed with the one
before it (the layer-wise shift). A further block starts from a slot's own output in place of h_i,
with the token that this slot proposed, at the same K rotary positions. A rank head says of every
slot how far down its list the target's token is likely to stand; `builders.rank_guided` branches by
it.
"""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.core.state import KVCache
from jaxspec.drafters.specblock.config import SpecBlockConfig
from jaxspec.targets.layers import DecoderLayer, Linear, RMSNorm, rope_table

RANK_FEATURES = 15
RANK_LOGPROBS = 10  # of the rank features


class SpecBlock(nn.Module):
    """The draft network; token embeddings are the target's, the output projection is its own."""

    config: SpecBlockConfig

    def setup(self):
        c = self.config
        self.condition_proj = Linear(c.hidden_size)
        self.condition_norm = RMSNorm(c.norm_eps)
        self.token_norm = RMSNorm(c.norm_eps)
        self.query_norm = RMSNorm(c.norm_eps)
        self.queries = self.param("queries", nn.initializers.normal(0.02), (c.slots, c.hidden_size))
        self.fuse = self.param(
            "fuse", nn.initializers.normal(0.02), (3 * c.hidden_size, c.hidden_size)
        )
        self.layers = [DecoderLayer(c) for _ in range(c.num_layers)]
        self.shifts = [Linear(c.hidden_size) for _ in range(c.num_layers - 1 if c.shift else 0)]
        self.norm = RMSNorm(c.norm_eps)
        size = c.draft_vocab_size or c.vocab_size
        self.lm_head = self.param("lm_head", nn.initializers.normal(0.02), (c.hidden_size, size))
        self.rank_inner = Linear(c.rank_hidden)
        self.rank_outer = Linear(c.rank_classes)

    def condition(self, features: jax.Array) -> jax.Array:
        """Conditions [B, T, E] of target features [B, T, len(feature_layers) * Et]; later blocks'
        are the drafter's own.
        """
        return self.condition_proj(features)

    def slots(self, condition: jax.Array, tokens: jax.Array) -> jax.Array:
        """What the K slots of T positions begin with, [B, T * K, E], a position's slots side by
        side.

        Args:
          condition: [B, T, E], from `condition`, or outputs of this drafter before the final norm.
          tokens: [B, T, E], the target's embeddings.
        """
        prefix = jnp.concatenate([self.condition_norm(condition), self.token_norm(tokens)], axis=-1)
        width = prefix.shape[-1]
        # What the slots share is projected once.
        prefix, query = (
            prefix @ self.fuse[:width],
            self.query_norm(self.queries) @ self.fuse[width:],
        )
        share = self.config.prefix_broadcast | (np.arange(self.config.slots) == 0)
        x = prefix[:, :, None] * share[:, None].astype(prefix.dtype) + query
        return x.reshape(x.shape[0], -1, x.shape[-1])

    def shift(self, layer: int, x: jax.Array) -> jax.Array:
        """`x` [B, T * K, E] as `layer` reads it: each slot mixed with the one before it, the first
        with itself.
        """
        if layer == 0 or not self.config.shift:
            return x
        slots = x.reshape(x.shape[0], -1, self.config.slots, x.shape[-1])
        before = jnp.concatenate([slots[:, :, :1], slots[:, :, :-1]], axis=2)
        return self.shifts[layer - 1](jnp.concatenate([slots, before], axis=-1)).reshape(x.shape)

    def __call__(
        self,
        condition: jax.Array,
        tokens: jax.Array,
        rope_positions: jax.Array,
        mask: jax.Array | None = None,
        cache: KVCache | None = None,
        earlier: tuple[jax.Array, jax.Array, jax.Array] | None = None,
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Outputs, keys and values of the slots of T positions.

        Args:
          condition, tokens: see `slots`.
          rope_positions: int32 [B, T * K].
          mask: see `pallas_kernels.reference.tree_attention`; None is causal over all slots in
            their order.
          cache: slots that every one sees, or None.
          earlier: (k, v [L, B, R, Kh, D], row): slots that `mask` is over, see
            `jaxspec.targets.layers.behind`; or None.

        Returns:
          (hidden [B, T * K, E] before the final norm, keys and values [L, B, T * K, Kh, D]).
        """
        x, rope, made = self.slots(condition, tokens), rope_table(rope_positions, self.config), []
        for i, layer in enumerate(self.layers):
            prefix = None if cache is None else (cache.k, cache.v, i, cache.length, None)
            behind = None if earlier is None else (earlier[0][i], earlier[1][i], earlier[2])
            x, new_kv = layer(self.shift(i, x), rope, rope_positions, mask, prefix, None, behind)
            made.append(new_kv)
        keys, values = zip(*made, strict=True)
        return x, jnp.stack(keys), jnp.stack(values)

    def final(self, hidden: jax.Array) -> jax.Array:
        """Outputs [..., E] after the final norm, which both heads read."""
        return self.norm(hidden)

    def logits(self, normed: jax.Array) -> jax.Array:
        """Logits [..., D] of the draft vocabulary, from `final`."""
        return normed @ self.lm_head

    def rank(self, normed: jax.Array, features: jax.Array) -> jax.Array:
        """Logits [..., rank_classes] of the rank head, from `final` and `rank_features`."""
        x = jnp.concatenate([normed, features.astype(normed.dtype)], axis=-1)
        return self.rank_outer(nn.silu(self.rank_inner(x)))


def rank_features(logits: jax.Array, top: int) -> jax.Array:
    """What the rank head is told of a distribution, float32 [..., 15], from logits [..., D].

    Ten log-probabilities, three differences to the best logit (of the 2nd, 3rd, 5th), the best
    probability and the entropy, all of the distribution over the `top` largest logits alone, as the
    authors' code has it.
    """
    # Without the barrier XLA merges the slices below into top_k and sorts whole rows on a CPU, a
    # hundred times slower.
    best = jax.lax.optimization_barrier(jax.lax.top_k(logits.astype(jnp.float32), top)[0])
    logprob = jax.nn.log_softmax(best, axis=-1)
    probability = jnp.exp(logprob)
    gaps = best[..., :1] - best[..., jnp.array([1, 2, 4])]
    entropy = -(probability * logprob).sum(-1, keepdims=True)
    return jnp.concatenate(
        [logprob[..., :RANK_LOGPROBS], gaps, probability[..., :1], entropy], axis=-1
    )


def slot_positions(positions: jax.Array, slots: int) -> jax.Array:
    """Rotary positions int32 [B, T * K] of the slots of pairs at `positions` [B, T]: i + 1 + k."""
    return (positions[..., None] + 1 + jnp.arange(slots)).reshape(positions.shape[0], -1)
