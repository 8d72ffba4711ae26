"""The target language model: one forward for prefill, one-token decoding and tree verification."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxspec.core.cache import PackedCache, PartCache, Rows, SequenceCache
from jaxspec.core.config import TargetConfig
from jaxspec.core.recurrent import Stash
from jaxspec.core.state import KVCache
from jaxspec.targets.attention import mask_window
from jaxspec.targets.delta_net import Lineage
from jaxspec.targets.head import declare_head
from jaxspec.targets.layers import DecoderLayer
from jaxspec.targets.linear import Linear, declare, look_up, multiply
from jaxspec.targets.norm import RMSNorm, add_normalize, norm_of
from jaxspec.targets.rope import rope_table


class ForwardOutput(NamedTuple):
    """Result of a forward pass of T rows.

    Attributes:
      hidden: [B, T, E] after the final norm; `Transformer.logits` turns rows of it into logits.
      features: [B, T, len(feature_layers) * E], concatenated outputs of the chosen decoder layers,
        before any norm.
      k, v: of each group of layers [L, B, T, K, D], keys and values of the new rows; the caller
        writes them to its cache.
      stash: of each group of recurrent layers, what the caller commits to their states.
    """

    hidden: jax.Array
    features: jax.Array
    k: Rows
    v: Rows
    stash: tuple[Stash, ...] = ()


class Earlier(NamedTuple):
    """R rows that are not in the cache, among which the new rows of a forward go.

    Attributes:
      k, v: of each group of layers [L, B, R, K, D].
      row: int32 [], where the new rows go.
      positions: int32 [B, R], positions of all of these rows.
    """

    k: Rows
    v: Rows
    row: jax.Array
    positions: jax.Array


def _run_now(layer: DecoderLayer, x, normed, rope, positions, mask, prefix, *rest):
    """Run `between_norms` of a layer as part of the module that it belongs to."""
    window = layer.config.window
    return layer.between_norms(x, normed, rope, positions, mask, prefix, window, *rest)


def _run_shared(layer: DecoderLayer, *args):
    """Run `between_norms` of a layer; all layers of one kind are traced and lowered once.

    XLA inlines the calls, so the compiled program is the same. The layer's weights must exist.
    """
    return _run_alike(layer.clone(parent=None, name=None), layer.variables, *args)


@functools.partial(jax.jit, static_argnames="layer")
def _run_alike(layer: DecoderLayer, variables, *args):
    return layer.apply(variables, *args, method=_run_now)


class Transformer(nn.Module):
    """Decoder-only transformer, as its config's records say; it knows no family.

    With `axis`, this is one device's share of it, see `jaxspec.targets.sharding`.
    """

    config: TargetConfig
    axis: str | None = None

    def setup(self):
        c = self.config
        self.embedding = declare(self, "embedding", (c.vocab_size, c.hidden_size), axis=-1)
        self.layers = [DecoderLayer(layer, True, self.axis) for layer in c.list_layers()]
        self.norm = RMSNorm(norm_of(c))
        own = None if c.tie_embeddings else declare_head(self, c.hidden_size, c.vocab_size)
        self.head = own or self.embedding
        if c.per_layer_size:
            width = c.num_layers * c.per_layer_size
            self.per_layer_embedding = declare(
                self, "per_layer_embedding", (c.per_layer_vocab_size, width), axis=-1
            )
            self.per_layer_projection = Linear(width)
            self.per_layer_norm = RMSNorm(norm_of(c))

    def __call__(
        self,
        tokens: jax.Array,
        positions: jax.Array,
        cache: KVCache | SequenceCache | PartCache | PackedCache | None = None,
        mask: jax.Array | None = None,
        feature_layers: tuple[int, ...] = (),
        earlier: Earlier | None = None,
    ) -> ForwardOutput:
        """Run T new rows.

        Args:
          tokens, positions: int32 [B, T].
          cache: prefix that every row sees up to `cache.length`. It is not written.
          mask: uint32 [B, T, W], which new rows each new row sees; None is causal. With recurrent
            layers, what a row sees are its ancestors in a tree, and parents come first.
          feature_layers: layers to return the outputs of, 0-based; -1 means the embeddings,
            `num_layers` the hidden state after the final norm.
          earlier: further rows that are not in the cache; `mask` is [B, T, ceil(R / 32)] then.

        Raises:
          ValueError: recurrent layers cannot see `earlier` rows, nor packed ones.
        """
        layers = self.config.list_layers()
        ropes = {(c.rope, c.head_dim): c for c in layers}
        capacity = tokens.shape[1] if cache is None else cache.capacity
        ropes = {key: rope_table(positions, c, capacity) for key, c in ropes.items()}
        masks = {
            window: _mask_window(window, positions, cache, mask, earlier)
            # In the layers' order: that of a set differs between processes, and so would programs.
            for window in dict.fromkeys(c.window for c in layers)
        }
        recurrent = self.config.list_recurrent_groups()
        stashes: list[list[Stash]] = [[] for _ in recurrent]
        if recurrent and (earlier is not None or isinstance(cache, PackedCache)):
            raise ValueError(
                "recurrent layers take no rows from outside of the cache or packed ones"
            )
        lineage = None
        if recurrent and mask is not None:
            lineage = Lineage.of(mask, max(group.delta.conv_width for group in recurrent) - 1)
        x = self.embed(tokens)
        per_layer = self._list_inputs(tokens, x) if self.config.per_layer_size else None
        norms = [*(layer.attention_norm for layer in self.layers), self.norm]
        normed = x if norms[0] is None else norms[0](x)
        features, places = {-1: x}, self.config.list_cache_places()
        keys, values = ([[] for _ in self.config.list_cache_groups()] for _ in range(2))
        new_kv: list[Any] = []
        run = _run_now if self.is_initializing() else _run_shared
        for i, (layer, c) in enumerate(zip(self.layers, layers, strict=True)):
            group, index = places[i]
            rows = None
            if c.delta is not None:
                prefix = None if cache is None else (cache.recurrent[group], index)
                given = None, None, lineage, prefix, None
            else:
                prefix = None if cache is None else cache.prefix(index, group=group)
                if earlier is not None:
                    rows = earlier.k[group][index], earlier.v[group][index], earlier.row
                given = ropes[c.rope, c.head_dim], positions, masks[c.window], prefix, rows
            given += (
                None if c.kv_source is None else new_kv[c.kv_source],
                None if per_layer is None else per_layer[:, :, i],
            )
            x, parts, new = run(layer, x, normed, *given)
            x, normed = add_normalize(norms[i + 1], x, parts, cache is not None)
            new_kv.append(new)
            if c.delta is not None:
                stashes[group].append(new)
            elif c.kv_source is None:
                keys[group].append(new[0])
                values[group].append(new[1])
            features[i] = x
        hidden = features[len(self.layers)] = normed
        chosen = [features[i] for i in feature_layers]
        empty = jnp.zeros((*x.shape[:2], 0), x.dtype)
        return ForwardOutput(
            hidden,
            jnp.concatenate(chosen, -1) if chosen else empty,
            tuple(map(jnp.stack, keys)),
            tuple(map(jnp.stack, values)),
            tuple(jax.tree.map(lambda *rows: jnp.stack(rows), *group) for group in stashes),
        )

    def embed(self, tokens: jax.Array) -> jax.Array:
        """Look up embeddings [..., E] of `tokens`, and scale them as the model does."""
        found = look_up(
            self.embedding, tokens, lambda: self.variables["params"]["norm"]["scale"].dtype
        )
        scale = self.config.embedding_scale
        return found if scale == 1 else found * jnp.asarray(scale, found.dtype)

    def _list_inputs(self, tokens: jax.Array, x: jax.Array) -> jax.Array:
        """Compute the inputs [B, T, L, P] that tokens with embeddings `x` have for every layer."""
        c = self.config
        shape = (*tokens.shape, c.num_layers, c.per_layer_size)
        projected = self.per_layer_projection(x) * jnp.asarray(c.hidden_size**-0.5, x.dtype)
        projected = self.per_layer_norm(projected.reshape(shape))
        found = look_up(self.per_layer_embedding, tokens, lambda: x.dtype).reshape(shape)
        found = found * jnp.asarray(c.per_layer_size**0.5, x.dtype)
        return (projected + found) * jnp.asarray(2**-0.5, x.dtype)

    def logits(self, hidden: jax.Array) -> jax.Array:
        """Compute next-token logits [..., V] from hidden states after the final norm.

        They are in the weights' dtype.
        """
        logits, c = multiply(hidden, self.head), self.config
        logits = logits if c.logit_scale == 1 else logits * c.logit_scale
        return logits if c.softcap is None else c.softcap * jnp.tanh(logits / c.softcap)


def _mask_window(
    window: int | None,
    positions: jax.Array,
    cache: Any,
    mask: jax.Array | None,
    earlier: Earlier | None,
) -> jax.Array | None:
    """Return which new rows each new row of a layer with this window sees, see `Transformer`."""
    if isinstance(cache, PackedCache):  # the mask is of each sequence's own rows
        positions = positions[0][cache.packing.place]
    keys = positions if earlier is None else earlier.positions
    if window is None or keys.shape[1] <= window:
        return mask
    return mask_window(mask, positions, keys, window)
