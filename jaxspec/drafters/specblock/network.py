"""SpecBlock: blocks of K tokens drafted at once. Each further block starts from any position of an
earlier block of the same path.

Pair i is the target's feature h_i of token x_i and the next token x_{i+1}. K slots read the pair
and differ only in a learned query ("prefix broadcast"). Slot k predicts x_{i+2+k} at rotary
position i + 1 + k. Before each decoder layer except the first, every slot is mixed with the slot
before it (the layer-wise shift). A further block starts from a slot's own output instead of h_i and
the token that this slot proposed, at the same K rotary positions. A rank head predicts, for every
slot, the class of the rank of the target's token in the slot's list; `builders.rank_guided`
branches by this class.
"""

from __future__ import annotations

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.core.config import FeatureDrafterConfig
from jaxspec.core.split_vocabulary import find_best
from jaxspec.core.state import KVCache
from jaxspec.targets.head import declare_head
from jaxspec.targets.layers import DecoderLayer
from jaxspec.targets.linear import INIT, Linear, multiply
from jaxspec.targets.norm import RMSNorm, norm_of
from jaxspec.targets.rope import rope_table


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpecBlockConfig(FeatureDrafterConfig):
    """A SpecBlock drafter: every forward proposes a block of `slots` tokens after each of its start
    nodes.

    Attributes:
      slots: K, tokens of a block.
      blocks: M, consecutive blocks on a path; may exceed the number in training.
      rank_classes: number of classes of the rank head.
      rank_hidden: inner width of the rank head.
      rank_top: T, number of largest logits that give the rank head's distribution features (20 in
        the released training, 10 in the released inference code); 0 takes all, as in the paper.
      prefix_broadcast: whether every slot reads the condition and the token; otherwise the slots
        after the first read only their query (ablation).
      shift: whether layers use the layer-wise shift (ablation).
    """

    slots: int = 4
    blocks: int = 2
    rank_classes: int = 4
    rank_hidden: int = 256
    rank_top: int = 10
    prefix_broadcast: bool = True
    shift: bool = True

    @property
    def depth(self) -> int:
        """Return the longest path that a round drafts unless a call says otherwise."""
        return self.slots * self.blocks


RANK_FEATURES = 15
RANK_LOGPROBS = 10  # log-probabilities among the rank features


class SpecBlock(nn.Module):
    """The draft network, with the target's token embeddings and its own output projection."""

    config: SpecBlockConfig

    def setup(self):
        c = self.config
        self.condition_proj = Linear(c.hidden_size)
        self.condition_norm = RMSNorm(norm_of(c))
        self.token_norm = RMSNorm(norm_of(c))
        self.query_norm = RMSNorm(norm_of(c))
        self.queries = self.param("queries", INIT, (c.slots, c.hidden_size))
        self.fuse = self.param("fuse", INIT, (3 * c.hidden_size, c.hidden_size))
        self.layers = [DecoderLayer(c) for _ in range(c.num_layers)]
        self.shifts = [Linear(c.hidden_size) for _ in range(c.num_layers - 1 if c.shift else 0)]
        self.norm = RMSNorm(norm_of(c))
        self.head = declare_head(self, c.hidden_size, c.draft_vocab_size or c.vocab_size)
        self.rank_inner = Linear(c.rank_hidden)
        self.rank_outer = Linear(c.rank_classes)

    def condition(self, features: jax.Array) -> jax.Array:
        """Fuse target features [B, T, len(feature_layers) * Et] to conditions [B, T, E]; later
        blocks use the drafter's own outputs as conditions.
        """
        return self.condition_proj(features)

    def slots(self, condition: jax.Array, tokens: jax.Array) -> jax.Array:
        """Return the initial states [B, T * K, E] of the K slots of T positions; the slots of a
        position are consecutive.

        Args:
          condition: [B, T, E], from `condition`, or outputs of this drafter before the final norm.
          tokens: [B, T, E], the target's embeddings.
        """
        prefix, query = self._projected(condition, tokens)
        share = self.config.prefix_broadcast | (np.arange(self.config.slots) == 0)
        x = prefix[:, :, None] * share[:, None].astype(prefix.dtype) + query
        return x.reshape(x.shape[0], -1, x.shape[-1])

    def _projected(self, condition: jax.Array, tokens: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Project what the slots of a position share, [B, T, E], and the queries, [K, E].

        That is one product, in which each has zeros for the other's inputs. With a product of each,
        XLA would copy its part of the weights before cuBLAS reads it.
        """
        prefix = jnp.concatenate([self.condition_norm(condition), self.token_norm(tokens)], axis=-1)
        query = self.query_norm(self.queries)
        rows = prefix.reshape(-1, prefix.shape[-1])
        given = jnp.concatenate(
            [
                jnp.pad(rows, ((0, 0), (0, query.shape[1]))),
                jnp.pad(query, ((0, 0), (rows.shape[1], 0))),
            ]
        )
        out = given @ self.fuse
        return out[: len(rows)].reshape(condition.shape), out[len(rows) :]

    def shift(self, layer: int, x: jax.Array) -> jax.Array:
        """Mix each slot of `x` [B, T * K, E] with the slot before it, the first with itself, as
        `layer` reads it.
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
        """Compute outputs, keys and values of the slots of T positions.

        Args:
          condition: [B, T, E], see `slots`.
          tokens: [B, T, E], see `slots`.
          rope_positions: int32 [B, T * K].
          mask: see `pallas_kernels.reference.tree_attention`; None is causal over all slots in
            their order.
          cache: slots that all rows see, or None.
          earlier: (k, v [L, B, R, Kh, D], row), the slots that `mask` covers, see
            `jaxspec.targets.layers.behind`; or None.

        Returns:
          (hidden [B, T * K, E] before the final norm, keys and values [L, B, T * K, Kh, D]).
        """
        x, rope, made = self.slots(condition, tokens), rope_table(rope_positions, self.config), []
        for i, layer in enumerate(self.layers):
            prefix = None if cache is None else cache.prefix(i)
            behind = None if earlier is None else (earlier[0][i], earlier[1][i], earlier[2])
            x, new_kv = layer(self.shift(i, x), rope, rope_positions, mask, prefix, None, behind)
            made.append(new_kv)
        keys, values = zip(*made, strict=True)
        return x, jnp.stack(keys), jnp.stack(values)

    def final(self, hidden: jax.Array) -> jax.Array:
        """Apply the final norm to outputs [..., E]; both heads read the result."""
        return self.norm(hidden)

    def logits(self, normed: jax.Array) -> jax.Array:
        """Return logits [..., D] of the draft vocabulary, from the result of `final`."""
        return multiply(normed, self.head)

    def rank(self, normed: jax.Array, features: jax.Array) -> jax.Array:
        """Return logits [..., rank_classes] of the rank head, from the results of `final` and
        `rank_features`.
        """
        x = jnp.concatenate([normed, features.astype(normed.dtype)], axis=-1)
        return self.rank_outer(nn.silu(self.rank_inner(x)))


def rank_features(logits: jax.Array, top: int) -> jax.Array:
    """Compute the rank head's features of a distribution, float32 [..., 15], from logits [..., D].

    They are ten log-probabilities, three differences to the best logit (of the 2nd, 3rd and 5th),
    the best probability and the entropy. All are of the distribution over only the `top` largest
    logits, as in the authors' code; 0 takes all of them, as in the paper (section 3.3).
    """
    # Without the barrier XLA merges the slices below into top_k, and on a CPU sorts whole rows,
    # which is a hundred times slower.
    scores = logits.astype(jnp.float32)
    best = find_best(scores, top or RANK_LOGPROBS, jax.lax.top_k)[0]
    best = jax.lax.optimization_barrier(best)
    all_logprobs = jax.nn.log_softmax(best if top else scores, axis=-1)
    entropy = -(jnp.exp(all_logprobs) * all_logprobs).sum(-1, keepdims=True)
    gaps = best[..., :1] - best[..., jnp.array([1, 2, 4])]
    logprob = all_logprobs if top else best - jax.nn.logsumexp(scores, axis=-1, keepdims=True)
    return jnp.concatenate(
        [logprob[..., :RANK_LOGPROBS], gaps, jnp.exp(logprob[..., :1]), entropy], axis=-1
    )


def slot_positions(positions: jax.Array, slots: int) -> jax.Array:
    """Return rotary positions i + 1 + k of slots, int32 [B, T * K]; `positions` is [B, T]."""
    return (positions[..., None] + 1 + jnp.arange(slots)).reshape(positions.shape[0], -1)
