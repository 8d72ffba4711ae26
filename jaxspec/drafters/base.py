"""The drafter protocol: a bundle of pure functions closed over a static config, in the manner of optax.

A drafter's variables are {"params": what is trained}. One with a reduced draft vocabulary (EAGLE-3's `d2t`) of D tokens has a
collection beside it that no optimizer touches: {"draft": {"lm_head": [E, D], "ids": int32 [D]}}, ids in ascending order.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxspec.cache import allocate, append
from jaxspec.config import BlockDrafterConfig
from jaxspec.drafters.block import BlockDrafter


class Drafter(NamedTuple):
    """What the decode loop needs of a drafter.

    Attributes:
      feature_layers: target decoder layers (0-based, their outputs) that `absorb` reads.
      depth: longest path that one round can propose.
      init: (batch, capacity, dtype) -> state, before any token is committed.
      absorb: (params, state, features [B, T, F], count [B]) -> state; takes in the features of newly committed tokens.
      expand: (params, state, embed, unembed, root [B], depth) -> logits [B, depth, V] of the tokens at depths 1..depth, in
        the weights' dtype, -inf for tokens that it cannot draft; `embed` and `unembed` are the target's embedding and output
        projection.
    """

    feature_layers: tuple[int, ...]
    depth: int
    init: Callable[..., Any]
    absorb: Callable[..., Any]
    expand: Callable[..., jax.Array]


@functools.lru_cache(maxsize=64)
def make_block_drafter(config: BlockDrafterConfig) -> Drafter:
    """DFlash, or JetSpec's head with `config.causal`. Cached: equal configs give the identical bundle."""
    module = BlockDrafter(config)

    def init(batch, capacity, dtype):
        return allocate(config, batch, capacity, dtype)

    def absorb(params, cache, features, count):
        positions = cache.length[:, None] + jnp.arange(features.shape[1])
        k, v = module.apply(params, features, positions, method="context_kv")
        return append(cache, k, v, count)

    def expand(params, cache, embed, unembed, root, depth):
        # The anchor sits right after the cached context and has no feature of its own yet.
        masks = jnp.full((root.shape[0], config.depth), config.mask_token_id, root.dtype)
        block = jnp.concatenate([root[:, None], masks], axis=1)
        positions = cache.length[:, None] + jnp.arange(config.block_size)
        hidden = module.apply(params, embed(block), positions, cache)
        hidden = hidden[:, 1 : depth + 1]
        return unembed(hidden) if config.draft_vocab_size is None else _draft_logits(params["draft"], hidden, config.vocab_size)

    return Drafter(config.feature_layers, config.depth, init, absorb, expand)


def _draft_logits(draft, hidden: jax.Array, vocab_size: int) -> jax.Array:
    """Logits [..., V] of which only the draft vocabulary's are computed, the others being -inf."""
    logits = hidden @ draft["lm_head"]
    whole = jnp.full((*logits.shape[:-1], vocab_size), -jnp.inf, logits.dtype)
    return whole.at[..., draft["ids"]].set(logits, indices_are_sorted=True, unique_indices=True)
