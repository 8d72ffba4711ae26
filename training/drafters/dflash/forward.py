"""Run a block drafter in training: many anchors and several documents per row in one pass.

Each block runs `BlockDrafter`'s forward pass over its document's context before the anchor, so
training and decoding run the same code. All blocks of a row share one copy of the context's keys
and values.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxspec.core.cache import filled
from jaxspec.drafters.dflash.network import BlockDrafter, BlockDrafterConfig

from ...loss.slot_losses import map_anchors


def block_hidden(
    config: BlockDrafterConfig,
    params,
    embedding: jax.Array,
    batch,
    features: jax.Array,
    *,
    chunk: int | None = None,
    method: str | None = None,
) -> jax.Array:
    """Run the blocks at the anchors; return final-norm hidden states [B, A, block_size, E].

    Args:
      config: of the drafter.
      params: variables of `BlockDrafter(config)`.
      embedding: [V, E], the target's embedding table.
      batch: `tokens` and `positions` int32 [B, S], positions from 0 in each document, and `anchors`
        int32 [B, A].
      features: [B, S, len(feature_layers) * Et], target features of the same tokens; a block
        attends to those before its anchor in the anchor's document.
      chunk: anchors of each row computed together, and recomputed for the gradient, which bounds
        the memory of activations; None computes all at once and keeps everything.
      method: `residual` for the states before the final norm.
    """
    drafter = BlockDrafter(config)
    anchors, positions = batch["anchors"], batch["positions"]
    k, v = drafter.apply(params, features, positions, method="context_kv")
    context = filled((k,), (v,), None)
    starts = jnp.take_along_axis(positions, anchors, axis=1)
    roots = jnp.take_along_axis(batch["tokens"], anchors, axis=1)

    def one(block):
        root, start, anchor = block
        ids = jnp.full((root.shape[0], config.block_size), config.mask_token_id).at[:, 0].set(root)
        rows = jnp.take(embedding, ids, axis=0)
        places = start[:, None] + jnp.arange(config.block_size)
        return drafter.apply(
            params,
            rows,
            places,
            context.replace(length=start),
            anchor - start,
            method=method,
        )

    return map_anchors(one, (roots, starts, anchors), chunk)
