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

import functools

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.core.cache import allocate, append
from jaxspec.core.config import SpecBlockConfig
from jaxspec.core.state import KVCache
from jaxspec.drafters import scratch as rows_of
from jaxspec.drafters.base import Drafter, Proposal, whole_vocabulary
from jaxspec.targets.layers import DecoderLayer, Linear, RMSNorm, rope_table

RANK_FEATURES = 15
_LOGPROBS = 10  # of the rank features
_CHUNK = 128  # pairs that `absorb` reads at a time: attention scores are K * _CHUNK by K * capacity


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

    def __call__(self, condition, tokens, rope_positions, mask=None, cache=None, earlier=None):
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
    return jnp.concatenate([logprob[..., :_LOGPROBS], gaps, probability[..., :1], entropy], axis=-1)


@flax.struct.dataclass
class SpecBlockState:
    """What is kept between rounds.

    Attributes:
      cache: K rows per committed pair. The last pair's are written too, but later blocks must see
        some of them only: they read them from `k` and `v`.
      k, v: [L, B, K, Kh, D], keys and values of the last pair's slots. hidden: [B, K, E], their
        outputs before the final norm.
    """

    cache: KVCache
    k: jax.Array
    v: jax.Array
    hidden: jax.Array


@functools.lru_cache(maxsize=64)
def make_specblock_drafter(config: SpecBlockConfig) -> Drafter:
    """SpecBlock: the root's block costs no forward of its own, since `absorb` computed it; every
    further block is one.

    Cached: equal configs give the identical bundle.

    Raises:
      ValueError: `rank_top` does not suit the rank features, or there is no slot or no block.
    """
    check(config)
    module, slots = SpecBlock(config), config.slots

    def propose(params, hidden):
        """Proposal of nodes from the outputs [B, M, K, E] of their slots."""
        weights = {"params": params["params"]}
        normed = module.apply(weights, hidden, method="final")
        logits = module.apply(weights, normed, method="logits")
        ranks = module.apply(weights, normed, rank_features(logits, config.rank_top), method="rank")
        if config.draft_vocab_size is not None:
            logits = whole_vocabulary(logits, params["draft"]["ids"], config.vocab_size)
        return Proposal(logits, ranks.argmax(-1).astype(jnp.int32), normed)

    def init(batch, capacity, dtype):
        kv = jnp.zeros(
            (config.num_layers, batch, slots, config.num_kv_heads, config.head_dim), dtype
        )
        hidden = jnp.zeros((batch, slots, config.hidden_size), dtype)
        return SpecBlockState(allocate(config, batch, capacity * slots, dtype), kv, kv, hidden)

    def absorb(params, state, target, new):
        rows = new.token.shape[1]
        chunk = rows
        while chunk > _CHUNK and chunk % 2 == 0:
            chunk //= 2
        embedded = target.embed(new.following)
        if chunk == rows:
            return read(params, state, embedded, new.features, new.position, new.count)

        def step(state, index):
            first = index * chunk
            tokens, features = (
                jax.lax.dynamic_slice_in_dim(x, first, chunk, axis=1)
                for x in (embedded, new.features)
            )
            count = jnp.clip(new.count - first, 0, chunk)
            return read(params, state, tokens, features, new.position + first, count), None

        return jax.lax.scan(step, state, jnp.arange(rows // chunk))[0]

    def read(params, state, tokens, features, position, count):
        """The state after T pairs, `count` of which count."""
        batch, pairs = tokens.shape[:2]
        weights = {"params": params["params"]}
        condition = module.apply(weights, features, method="condition")
        places = position[:, None] + jnp.arange(pairs)
        hidden, k, v = module.apply(
            weights, condition, tokens, slot_positions(places, slots), cache=state.cache
        )
        last = (jnp.maximum(count - 1, 0) * slots)[:, None] + jnp.arange(slots)  # [B, K]
        some = count > 0

        def keep(new, old):
            return jnp.where(some[:, None, None, None], new.astype(old.dtype), old)

        return SpecBlockState(
            append(state.cache, k, v, count * slots),
            keep(jnp.take_along_axis(k, last[None, :, :, None, None], axis=2), state.k),
            keep(jnp.take_along_axis(v, last[None, :, :, None, None], axis=2), state.v),
            jnp.where(
                some[:, None, None],
                jnp.take_along_axis(hidden, last[..., None], axis=1),
                state.hidden,
            ),
        )

    def start(params, state, target, root, rows):
        c, batch = config, root.shape[0]
        scratch = rows_of.empty(
            c.num_layers, batch, rows, c.num_kv_heads, c.head_dim, c.hidden_size, state.hidden.dtype
        )
        scratch = rows_of.write(scratch, state.k, state.v, state.hidden, 0)
        causal = jnp.broadcast_to(jnp.tri(slots, dtype=bool), (batch, slots, slots))
        scratch = scratch.replace(visible=scratch.visible.at[:, :slots, :slots].set(causal))
        return propose(params, state.hidden[:, None]), scratch

    def expand(params, state, scratch, target, nodes, first):
        batch, count = nodes.token.shape
        scratch = rows_of.look(scratch, nodes.source, slots, first)
        mask = rows_of.mask_words(scratch, count * slots, first)
        condition = jnp.take_along_axis(scratch.hidden, nodes.source[..., None], axis=1)
        # The last pair's slots stand in the scratch, so its rows in the cache are not to be seen.
        before = jnp.maximum(state.cache.length - slots, 0)
        places = jnp.broadcast_to((before // slots)[:, None], (batch, count))
        hidden, k, v = module.apply(
            {"params": params["params"]},
            condition,
            target.embed(nodes.token),
            slot_positions(places, slots),
            mask,
            state.cache.replace(length=before),
            (scratch.k, scratch.v, first),
        )
        return propose(params, hidden.reshape(batch, count, slots, -1)), rows_of.write(
            scratch, k, v, hidden, first
        )

    return Drafter(config.feature_layers, config.depth, slots, init, absorb, start, expand)


def slot_positions(positions: jax.Array, slots: int) -> jax.Array:
    """Rotary positions int32 [B, T * K] of the slots of pairs at `positions` [B, T]: i + 1 + k."""
    return (positions[..., None] + 1 + jnp.arange(slots)).reshape(positions.shape[0], -1)


def check(config: SpecBlockConfig) -> None:
    """Raise a one-line ValueError where sizes are out of range."""
    drafted = config.draft_vocab_size or config.vocab_size
    if not _LOGPROBS <= config.rank_top <= drafted:
        raise ValueError(
            f"rank_top is {config.rank_top}: give {_LOGPROBS} to {drafted}, the tokens that can be drafted"
        )
    if config.slots < 1 or config.blocks < 1:
        raise ValueError(
            f"slots is {config.slots} and blocks is {config.blocks}: give at least 1 of each"
        )
