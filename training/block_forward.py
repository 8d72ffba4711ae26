"""Training forward of a block drafter: many anchors per sequence in one pass.

Each block is one row of the batch of `BlockDrafter`'s own forward, over its sequence's context cut off before the anchor, so
training and decoding run the same code.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxspec.cache import filled
from jaxspec.config import BlockDrafterConfig
from jaxspec.drafters.block import BlockDrafter


def block_hidden(
    config: BlockDrafterConfig, params, embedding: jax.Array, tokens: jax.Array, features: jax.Array, anchors: jax.Array
) -> jax.Array:
    """Hidden states [B, A, block_size, E], after the final norm, of the blocks at `anchors`.

    Args:
      params: variables of `BlockDrafter(config)`.
      embedding: [V, E], the target's embedding table.
      tokens: int32 [B, S].
      features: [B, S, len(feature_layers) * Et], target features of the same tokens; those at or after an anchor are not
        seen by its block.
      anchors: int32 [B, A], positions in the sequence.
    """
    drafter = BlockDrafter(config)
    batch, count = anchors.shape
    length = tokens.shape[1]
    positions = jnp.broadcast_to(jnp.arange(length), tokens.shape)
    context = drafter.apply(params, features, positions, method="context_kv")
    keys, values = (jnp.repeat(rows, count, axis=1) for rows in context)
    ids = jnp.full((batch, count, config.block_size), config.mask_token_id)
    ids = ids.at[:, :, 0].set(jnp.take_along_axis(tokens, anchors, axis=1)).reshape(batch * count, -1)
    block = jnp.take(embedding, ids, axis=0)
    starts = anchors.reshape(-1)
    hidden = drafter.apply(params, block, starts[:, None] + jnp.arange(config.block_size), filled(keys, values, starts))
    return hidden.reshape(batch, count, config.block_size, -1)
