"""Training forward of a block drafter: many anchors per row in one pass, several documents per row.

Each block runs `BlockDrafter`'s own forward over its document's context before the anchor, so that
training and decoding are the same code. All blocks of a row share one copy of its context's keys
and values.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxspec.core.cache import filled
from jaxspec.core.state import KVCache
from jaxspec.drafters.dflash.config import BlockDrafterConfig
from jaxspec.drafters.dflash.network import BlockDrafter


def block_hidden(
    config: BlockDrafterConfig,
    params,
    embedding: jax.Array,
    batch,
    features: jax.Array,
    *,
    chunk: int | None = None,
) -> jax.Array:
    """Hidden states [B, A, block_size, E], after the final norm, of the blocks at the anchors.

    Args:
      params: variables of `BlockDrafter(config)`.
      embedding: [V, E], the target's embedding table.
      batch: `tokens` and `positions` int32 [B, S], positions from 0 in each document, and `anchors`
        int32 [B, A].
      features: [B, S, len(feature_layers) * Et], target features of the same tokens; a block sees
        those of its anchor's document that come before the anchor.
      chunk: anchors of each row that are computed together and, for the gradient, computed again:
        bounds the memory that activations take. None computes all at once and keeps everything.
    """
    drafter = BlockDrafter(config)
    anchors, positions = batch["anchors"], batch["positions"]
    context = filled(*drafter.apply(params, features, positions, method="context_kv"), None)
    starts = jnp.take_along_axis(positions, anchors, axis=1)
    roots = jnp.take_along_axis(batch["tokens"], anchors, axis=1)

    def one(block):
        root, start, anchor = block
        ids = jnp.full((root.shape[0], config.block_size), config.mask_token_id).at[:, 0].set(root)
        rows = jnp.take(embedding, ids, axis=0)
        places = start[:, None] + jnp.arange(config.block_size)
        return drafter.apply(
            params, rows, places, KVCache(context.k, context.v, start), anchor - start
        )

    blocks = tuple(array.T for array in (roots, starts, anchors))
    hidden = (
        jax.vmap(one)(blocks)
        if chunk is None
        else jax.lax.map(jax.checkpoint(one), blocks, batch_size=chunk)
    )
    return hidden.swapaxes(0, 1)
