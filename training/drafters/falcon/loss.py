"""Train Falcon: chains of blocks at random anchors, with glancing.

Gao et al. 2024 (coupled sequential glancing distillation) predict a block from the text first. Then
they replace some of the block's first pairs, feature and token together, by the true pairs K places
later, and train the other rows given these. The more rows the first prediction got wrong, the more
are replaced. As in the released code, replaced rows begin at a block's first row and never include
its last, and enough blocks are chosen to replace `glance` times the number of wrong rows.

Four things differ. The ratio is constant (in the code it falls from 0.45 to 0.1 over the epochs).
Replaced rows have no loss, because they have read their answer. The divergence is any of
`LossOptions`, without a regression of features. Blocks follow each other as in decoding, each
reading the outputs of the previous one (EAGLE-3's training-time test).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxspec.core.cache import filled
from jaxspec.core.config import TargetConfig
from jaxspec.drafters.falcon.network import Falcon, FalconConfig
from jaxspec.targets.layers import behind

from ...loss.objective import LossOptions, get_drafter_inputs
from ...loss.slot_losses import (
    check_options,
    compute_weights,
    make_slot_losses,
    map_anchors,
    sum_losses,
)
from ...loss.terms import gather


def make_falcon_loss(
    config: FalconConfig,
    target_config: TargetConfig,
    options: LossOptions,
    *,
    glance: float = 0.25,
    seed: int = 0,
) -> Callable:
    """Make `loss(params, target, batch) -> {name: (numerator, denominator)}`.

    The interface is that of `training.drafters.dflash.loss`. Slot k (from 0) of an anchor p
    learns token p + 1 + k. There are `config.depth` slots, in blocks of `config.slots`. Anchors
    with fewer than `config.slots` tokens of their document before them do not count. If rows of an
    anchor were replaced, only the other rows of its first block count, and only for `loss`.

    Args:
      config: of the drafter.
      target_config: of the target.
      options: see `LossOptions`.
      glance: ratio of replaced rows to rows that the drafter gets wrong; 0 leaves out glancing and
        its forward pass.
      seed: of the choice of blocks, which otherwise depends only on the batch.

    Raises:
      ValueError: an option is out of range.
    """
    check_options(options)
    if not 0 <= glance <= 1:
        raise ValueError(f"glance is {glance}: give a ratio from 0 to 1")
    if not 1 <= config.depth <= 32:
        raise ValueError(f"slots times blocks is {config.depth}: give 1 to 32 drafted tokens")
    slot_losses = make_slot_losses(target_config, options)
    guesses = make_slot_losses(target_config, dataclasses.replace(options, kind="ce"))

    def loss(params, target, batch):
        states, *inputs, features = get_drafter_inputs(
            config, target_config, options, params, target, batch
        )
        head, slots = params["params"]["lm_head"], config.slots
        hidden_of = make_chains(config, *inputs, batch, features, options.anchor_chunk)
        counted = compute_weights(batch, config.depth, slots, options.gamma)
        replaced = jnp.zeros((*batch["anchors"].shape, slots), bool)
        if glance:
            first = jax.lax.stop_gradient(hidden_of(replaced, 1))
            _, right, _ = guesses(first, jax.lax.stop_gradient(head), target, batch, states)
            replaced = choose(batch, right, counted[..., :slots] > 0, glance, seed)
        found = slot_losses(hidden_of(replaced, config.blocks), head, target, batch, states)
        glanced = replaced.any(-1, keepdims=True)
        later = jnp.arange(config.depth) >= slots
        given = jnp.pad(replaced, ((0, 0), (0, 0), (0, config.depth - slots))) | (later & glanced)
        return sum_losses(found, jnp.where(given, 0, counted), jnp.where(glanced, 0, counted))

    return loss


def choose(batch, right: jax.Array, counted: jax.Array, glance: float, seed: int) -> jax.Array:
    """Choose the rows to replace: bool [B, A, K].

    Each batch row is decided alone, from its tokens and anchors, so splitting a batch changes
    nothing.

    Args:
      batch: `tokens` and `anchors` are read.
      right: bool [B, A, K], whether the first prediction was right.
      counted: bool [B, A, K], whether the slot counts.
      glance: ratio of replaced rows to wrong rows.
      seed: of the random choice.
    """
    slots = right.shape[-1]
    wrong = (counted & ~right).sum((1, 2)) / jnp.maximum(counted.sum((1, 2)), 1)
    # A chosen block has 1 to K - 1 rows replaced, K / 2 on average.
    chance = jnp.minimum(2 * glance * wrong, 1)
    mark = (batch["anchors"] * (1 + jnp.arange(right.shape[1]))).sum(1) + batch["tokens"].sum(1)

    def draw(mark, chance):
        which, length = jax.random.split(jax.random.fold_in(jax.random.key(seed), mark))
        chosen = jax.random.uniform(which, right.shape[1:2]) < chance
        return chosen[:, None] & (
            jnp.arange(slots) < jax.random.randint(length, (right.shape[1], 1), 1, max(slots, 2))
        )

    return jax.vmap(draw)(mark, chance) & (slots > 1)


def make_chains(
    config: FalconConfig, params, embedding, batch, features, chunk: int | None = None
) -> Callable:
    """Make (replaced bool [B, A, K], blocks) -> hidden states [B, A, blocks * K, E] at the anchors.

    The hidden states are those after the final norm.

    Args:
      config: of the drafter.
      params: variables of `Falcon(config)`.
      embedding: [V, E], the target's embedding table.
      batch: `tokens` and `positions` int32 [B, S], positions from 0 in each document, and `anchors`
        int32 [B, A]. Ignore the output at anchors with fewer than K tokens of their document before
        them.
      features: [B, S, len(feature_layers) * Et], of the target.
      chunk: anchors of each row computed together, and recomputed for the gradient; None computes
        all at once and keeps everything.
    """
    model, slots = Falcon(config), config.slots
    positions, anchors = batch["positions"], batch["anchors"]
    fused = model.apply(params, features, method="fuse")
    # No token follows the last column, so its pair is wrong; no anchor reads it.
    following = jnp.roll(batch["tokens"], -1, axis=1)
    empty = jnp.zeros((len(anchors), 2 * config.lstm_layers * config.lstm_size), fused.dtype)
    x, memory = model.apply(
        params, jnp.take(embedding, following, axis=0), fused, empty, positions == 0, method="read"
    )
    k, v = model.apply(params, x, positions, method="context_kv")
    context = filled((k,), (v,), None)
    start = gather(positions, anchors)

    def window(rows, at):
        """Take K rows of `rows` [B, S, ...] from index `at` int32 [B, A] on: [B, A, K, ...]."""
        return gather(rows, jnp.clip(at[..., None] + jnp.arange(slots), 0, positions.shape[1] - 1))

    def hidden_of(replaced, blocks: int):
        at = anchors[..., None] + jnp.arange(slots) - slots
        at = jnp.clip(jnp.where(replaced, at + slots, at), 0, positions.shape[1] - 1)
        past = gather(memory, jnp.maximum(anchors - slots - 1, 0))
        past = jnp.where((start > slots)[..., None], past, 0)
        ahead = jnp.stack(
            [window(following, anchors + block * slots) for block in range(blocks - 1)] or [at],
            axis=2,
        )
        columns = (anchors, start, past, gather(following, at), gather(fused, at), ahead)
        return map_anchors(lambda column: chain(blocks, *column), columns, chunk)

    def chain(blocks, anchor, place, past, tokens, feature, ahead):
        rows, batch_size = blocks * slots, len(anchor)
        keys = values = jnp.zeros(
            (batch_size, rows, config.num_kv_heads, config.head_dim), feature.dtype
        )
        before = context.replace(length=jnp.maximum(place - slots, 0))
        prefix = before.prefix(0, anchor - place)
        out = []
        for block in range(blocks):
            read = (jnp.take(embedding, tokens, axis=0), feature, past)
            x, states = model.apply(params, *read, method="read")
            places = place[:, None] + (block - 1) * slots + jnp.arange(slots)
            mask = jnp.full((batch_size, slots, 1), 2 ** ((block + 1) * slots) - 1, jnp.uint32)
            earlier = (keys, values, block * slots)
            feature, (k, v) = model.apply(params, x, places, mask, prefix, earlier)
            (keys, values), past = behind(earlier, k[0], v[0]), states[:, -1]
            tokens = ahead[:, min(block, blocks - 2)] if blocks > 1 else tokens
            out.append(feature)
        return model.apply(params, jnp.concatenate(out, axis=1), method="normed")

    return hidden_of
