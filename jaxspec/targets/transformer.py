"""The target language model: one forward for prefill, one-token decoding and tree verification."""

from __future__ import annotations

import functools
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxspec.core.cache import PackedCache, PartCache, SequenceCache
from jaxspec.core.config import TargetConfig
from jaxspec.core.state import KVCache
from jaxspec.targets.head import declare_head
from jaxspec.targets.layers import DecoderLayer, GatedMLP, RMSNorm, rope_table
from jaxspec.targets.linear import declare, look_up, multiply
from jaxspec.targets.moe import SparseMLP


class ForwardOutput(NamedTuple):
    """Result of a forward pass of T rows.

    Attributes:
      hidden: [B, T, E] after the final norm; `Transformer.logits` turns rows of it into logits.
      features: [B, T, len(feature_layers) * E], concatenated outputs of the chosen decoder layers,
        before any norm.
      k, v: [L, B, T, K, D], keys and values of the new rows; the caller writes them to its cache.
    """

    hidden: jax.Array
    features: jax.Array
    k: jax.Array
    v: jax.Array


def _run_now(layer: DecoderLayer, x, normed, rope, positions, mask, prefix, earlier):
    """Run `between_norms` of a layer as part of the module that it belongs to."""
    return layer.between_norms(x, normed, rope, positions, mask, prefix, earlier=earlier)


def _run_shared(layer: DecoderLayer, *args):
    """Run `between_norms` of a layer; all layers of one kind are traced and lowered once.

    XLA inlines the calls, so the compiled program is the same. The layer's weights must exist.
    """
    return _run_alike(layer.clone(parent=None, name=None), layer.variables, *args)


@functools.partial(jax.jit, static_argnames="layer")
def _run_alike(layer: DecoderLayer, variables, *args):
    return layer.apply(variables, *args, method=_run_now)


class Transformer(nn.Module):
    """Decoder-only transformer of the Qwen3, Llama 3 and Qwen3-MoE families.

    With `axis`, this is one device's share of it, see `jaxspec.targets.sharding`.
    """

    config: TargetConfig
    axis: str | None = None

    def setup(self):
        c = self.config
        self.embedding = declare(self, "embedding", (c.vocab_size, c.hidden_size), axis=-1)
        sparse = [c.moe is not None and i not in c.moe.dense_layers for i in range(c.num_layers)]
        self.layers = [
            DecoderLayer(c, SparseMLP if is_sparse else GatedMLP, True, self.axis)
            for is_sparse in sparse
        ]
        self.norm = RMSNorm(c.norm_eps)
        own = None if c.tie_embeddings else declare_head(self, c.hidden_size, c.vocab_size)
        self.head = own or self.embedding

    def __call__(
        self,
        tokens: jax.Array,
        positions: jax.Array,
        cache: KVCache | SequenceCache | PartCache | PackedCache | None = None,
        mask: jax.Array | None = None,
        feature_layers: tuple[int, ...] = (),
        earlier: tuple[jax.Array, jax.Array, jax.Array] | None = None,
    ) -> ForwardOutput:
        """Run T new rows.

        Args:
          tokens, positions: int32 [B, T].
          cache: prefix that every row sees up to `cache.length`. It is not written.
          mask: uint32 [B, T, W], which new rows each new row sees; None is causal.
          feature_layers: layers to return the outputs of, 0-based; -1 means the embeddings,
            `num_layers` the hidden state after the final norm.
          earlier: (k, v [L, B, R, K, D], row): further rows that are not in the cache. The new rows
            go in from `row` on, and `mask` is [B, T, ceil(R / 32)].
        """
        rope = rope_table(positions, self.config)
        x = self.embed(tokens)
        norms = [*(layer.attention_norm for layer in self.layers), self.norm]
        normed, features, keys, values = norms[0](x), {-1: x}, [], []
        for i, layer in enumerate(self.layers):
            prefix = None if cache is None else cache.prefix(i)
            rows = None if earlier is None else (earlier[0][i], earlier[1][i], earlier[2])
            run = _run_now if self.is_initializing() else _run_shared
            x, parts, (k, v) = run(layer, x, normed, rope, positions, mask, prefix, rows)
            x, normed = norms[i + 1].add_normalize(x, parts, cache is not None)
            keys.append(k)
            values.append(v)
            features[i] = x
        hidden = features[len(self.layers)] = normed
        chosen = [features[i] for i in feature_layers]
        empty = jnp.zeros((*x.shape[:2], 0), x.dtype)
        return ForwardOutput(
            hidden,
            jnp.concatenate(chosen, -1) if chosen else empty,
            jnp.stack(keys),
            jnp.stack(values),
        )

    def embed(self, tokens: jax.Array) -> jax.Array:
        """Look up embeddings [..., E] of `tokens`."""
        return look_up(
            self.embedding, tokens, lambda: self.variables["params"]["norm"]["scale"].dtype
        )

    def logits(self, hidden: jax.Array) -> jax.Array:
        """Compute next-token logits [..., V] from hidden states after the final norm.

        They are in the weights' dtype.
        """
        return multiply(hidden, self.head)
