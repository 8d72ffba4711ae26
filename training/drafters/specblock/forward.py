"""Run SpecBlock in training: the first block at every position, further blocks at the anchors only.

The first block's keys and values, which decoding caches, are computed at all positions. Outputs,
and the queries of the last layer, are needed at the anchors only. A further block attends to the
same slots as in decoding: the first block's at earlier positions, those up to the cut of the
earlier blocks of its own path, and its own.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxspec.drafters.specblock.network import SpecBlock, SpecBlockConfig, slot_positions
from jaxspec.targets.attention import attend
from jaxspec.targets.layers import DecoderLayer
from jaxspec.targets.rope import rope_table
from pallas_kernels.reference import apply_rope

from ...loss.terms import gather


def draw_cuts(batch, count: int, slots: int) -> jax.Array:
    """Draw cuts int32 [B, count], uniform in 1..slots: the next block begins after the cut's slot.

    If the batch has `cuts`, they are returned instead. Cuts depend on each row's number and
    anchors: they do not change with the division of a batch into parts and devices, and they differ
    in every epoch. (The authors draw one cut for all rows of a batch.)
    """
    rows, anchors = batch["anchors"].shape
    if "cuts" in batch:
        return jnp.broadcast_to(batch["cuts"], (rows, count)).astype(jnp.int32)
    places = (
        batch["anchors"].astype(jnp.uint32) * (2 * jnp.arange(anchors, dtype=jnp.uint32) + 1)
    ).sum(1, dtype=jnp.uint32)
    seeds = batch["rows"].astype(jnp.uint32) * jnp.uint32(2654435761) + places
    return jax.vmap(lambda seed: jax.random.randint(jax.random.key(seed), (count,), 1, slots + 1))(
        seeds
    )


def block_outputs(
    config: SpecBlockConfig,
    params,
    embedding: jax.Array,
    batch,
    features: jax.Array,
    cuts: jax.Array,
    *,
    peers: bool = False,
) -> jax.Array:
    """Run a chain of 1 + C blocks from every anchor.

    Args:
      config: of the drafter.
      params: variables of `SpecBlock(config)`.
      embedding: [V, E], the target's embedding table.
      batch: `tokens`, `positions`, `segments` int32 [B, S], positions from 0 in each document, and
        `anchors` int32 [B, A]. The anchor p is the pair (h_{p-1}, x_p). An anchor at position 0 has
        no pair: ignore its output.
      features: [B, S, len(feature_layers) * Et], of the target.
      cuts: int32 [B, C], the slot of each block after which the next one begins. The next block
        reads the text's own token.
      peers: let a further block also attend to the same block of earlier anchors in its document.
        The authors' code does so for all positions; in decoding there are no such blocks.

    Returns:
      [1 + C, B, A, K, E], outputs before the final norm.
    """
    module, slots = SpecBlock(config), config.slots
    pairs = jnp.maximum(batch["anchors"] - 1, 0)
    length = batch["tokens"].shape[1]

    def embed(places):
        return jnp.take(embedding, gather(batch["tokens"], jnp.minimum(places, length - 1)), axis=0)

    def first(params, features, tokens):
        return module.apply(params, features, tokens, batch, pairs, method=_first_block)

    def further(params, condition, tokens, earlier, visible):
        return module.apply(
            params,
            condition,
            tokens,
            gather(batch["positions"], pairs),
            earlier,
            visible,
            method=_block,
        )

    following = jnp.broadcast_to(jnp.arange(length) + 1, batch["tokens"].shape)
    hidden, earlier = first(params, features, embed(following))
    outputs, seen = [hidden], [_context(batch["segments"], pairs, cuts, slots)]
    for c in range(cuts.shape[1]):
        ahead = cuts[:, : c + 1].sum(1, keepdims=True)
        condition = gather(
            hidden.reshape(*pairs.shape, slots, -1).swapaxes(1, 2), cuts[:, c, None] - 1
        )[:, 0]
        visible = jnp.concatenate([*seen, _own(batch["segments"], pairs, slots, peers)], axis=-1)
        hidden, made = jax.checkpoint(further)(
            params, condition, embed(pairs + 1 + ahead), earlier, visible
        )
        outputs.append(hidden)
        if c + 1 < cuts.shape[1]:
            earlier = jax.tree.map(
                lambda old, new: jnp.concatenate([old, new], axis=1), earlier, made
            )
            seen.append(_path(pairs.shape[1], slots, cuts[:, c + 1]))
    return jnp.stack(outputs).reshape(len(outputs), *pairs.shape, slots, -1)


def _first_block(module: SpecBlock, features, tokens, batch, pairs):
    """Run the first block.

    Returns:
      (outputs [B, A * K, E] at `pairs`, keys and values [B, S * K, Kh, D] of every layer at all
      positions).
    """
    slots, positions = module.config.slots, batch["positions"]
    x = module.slots(module.condition(features), tokens)
    places = slot_positions(positions, slots)
    index = jnp.broadcast_to(jnp.arange(x.shape[1]), x.shape[:2])
    segments, made = jnp.repeat(batch["segments"], slots, axis=1), []
    for i, layer in enumerate(module.layers):
        x = module.shift(i, x)
        k, v = layer.attention.keys_values(
            layer.attention_norm(x), rope_table(places, module.config)
        )
        made.append((k, v))
        if i + 1 == len(module.layers):  # the outputs of other positions are not needed
            index = (pairs[..., None] * slots + jnp.arange(slots)).reshape(pairs.shape[0], -1)
            x, places = gather(x, index), gather(places, index)
        visible = gather(segments, index)[:, :, None] == segments[:, None]
        visible = visible & (jnp.arange(segments.shape[1]) <= index[..., None])
        x = _attend(layer, x, places, k, v, visible)
    return x, tuple(made)


def _block(module: SpecBlock, condition, tokens, positions, earlier, visible):
    """Run a further block; return its outputs [B, A * K, E], and its keys and values.

    `visible` masks the slots of `earlier` first, then the block's own.
    """
    x = module.slots(condition, tokens)
    places = slot_positions(positions, module.config.slots)
    made = []
    for i, layer in enumerate(module.layers):
        x = module.shift(i, x)
        own = layer.attention.keys_values(
            layer.attention_norm(x), rope_table(places, module.config)
        )
        k, v = (jnp.concatenate(pair, axis=1) for pair in zip(earlier[i], own, strict=True))
        x = _attend(layer, x, places, k, v, visible)
        made.append(own)
    return x, tuple(made)


def _attend(layer: DecoderLayer, x, places, k, v, visible):
    """Apply `layer` to rows `x` [B, T, E] with given keys and values [B, R, Kh, D].

    `visible` bool [B, T, R] is the attention mask.
    """
    attention, c = layer.attention, layer.config
    q = attention.q(layer.attention_norm(x)).reshape(*x.shape[:2], c.num_heads, c.head_dim)
    q = apply_rope(attention.q_norm(q) if c.qk_norm else q, rope_table(places, c))
    attended = attend(q, k, v, places, mask=_words(visible))
    x = x + attention.o(attended.reshape(*x.shape[:2], -1))
    return x + layer.mlp(layer.mlp_norm(x))


def _context(segments, pairs, cuts, slots: int) -> jax.Array:
    """Make the mask bool [B, A * K, S * K] of the first block's slots.

    It shows those at earlier positions of the document, and at the pair's position up to the cut.
    """
    if cuts.shape[1] == 0:
        return jnp.zeros(
            (*pairs.shape[:1], pairs.shape[1] * slots, segments.shape[1] * slots), bool
        )
    flat = jnp.repeat(segments, slots, axis=1)
    end = pairs * slots + cuts[:, :1]
    seen = (gather(segments, pairs)[..., None] == flat[:, None]) & (
        jnp.arange(flat.shape[1]) < end[..., None]
    )
    return jnp.repeat(seen, slots, axis=1)


def _path(anchors: int, slots: int, cut) -> jax.Array:
    """Make the mask bool [B, A * K, A * K] of the same anchor's slots before the cut int32 [B]."""
    same = jnp.repeat(jnp.repeat(jnp.eye(anchors, dtype=bool), slots, axis=0), slots, axis=1)
    return same & (jnp.tile(jnp.arange(slots), anchors) < cut[:, None, None])


def _own(segments, pairs, slots: int, peers: bool) -> jax.Array:
    """Make the mask bool [B, A * K, A * K] of the same anchor's slots up to the row's own.

    With `peers` it also shows the slots of earlier anchors in the document.
    """
    anchors = pairs.shape[1]
    causal = jnp.kron(jnp.eye(anchors, dtype=jnp.int32), jnp.tri(slots, dtype=jnp.int32)) > 0
    if not peers:
        return jnp.broadcast_to(causal, (pairs.shape[0], *causal.shape))
    document = gather(segments, pairs)
    before = (pairs[:, None] < pairs[..., None]) & (document[:, None] == document[..., None])
    return causal | jnp.repeat(jnp.repeat(before, slots, axis=1), slots, axis=2)


def _words(visible: jax.Array) -> jax.Array:
    """Pack bool [B, T, R] into mask words uint32 [B, T, ceil(R / 32)]."""
    padded = jnp.pad(visible, ((0, 0), (0, 0), (0, -visible.shape[-1] % 32))).reshape(
        *visible.shape[:2], -1, 32
    )
    return (padded.astype(jnp.uint32) << jnp.arange(32, dtype=jnp.uint32)).sum(-1, dtype=jnp.uint32)
