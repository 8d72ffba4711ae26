"""The DFlash and JetSpec drafters: one step proposes a whole block after the root."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxspec.core.cache import allocate, append
from jaxspec.core.state import KVCache
from jaxspec.drafters.base import Committed, Drafter, Proposal, TargetHead, whole_vocabulary
from jaxspec.drafters.dflash.network import BlockDrafter, BlockDrafterConfig
from jaxspec.targets.head import project_draft


def make_block_drafter(config: BlockDrafterConfig) -> Drafter:
    """Make DFlash, or JetSpec's head with `config.causal`."""
    module = BlockDrafter(config)
    init, absorb = make_context_functions(config, module)

    def start(
        params: Any,
        cache: KVCache,
        target: TargetHead,
        root: jax.Array,
        rows: int,
        block: jax.Array | None = None,
    ) -> tuple[Proposal, None]:
        slots, positions = make_block(config, cache, target, root)
        hidden = module.apply(params, slots, positions, cache, size=block)[:, 1 : rows + 1]
        if config.draft_vocab_size is None:
            return Proposal(target.unembed(hidden)[:, None]), None
        logits = whole_vocabulary(
            project_draft(params, hidden), params["draft"]["ids"], config.vocab_size
        )
        return Proposal(logits[:, None]), None

    return Drafter(config.feature_layers, config.depth, config.depth, init, absorb, start)


def make_context_functions(
    config: BlockDrafterConfig, module: nn.Module
) -> tuple[Callable[..., KVCache], Callable[..., KVCache]]:
    """Make `init` and `absorb` of a drafter whose state is the cache of its context.

    Args:
      module: has the method `context_kv` of `BlockDrafter`.
    """

    def init(batch: int, capacity: int, dtype: Any) -> KVCache:
        return allocate(config, batch, capacity, dtype)

    def absorb(params: Any, cache: KVCache, target: TargetHead, new: Committed) -> KVCache:
        positions = new.position[:, None] + jnp.arange(new.token.shape[1])
        k, v = module.apply(params, new.features, positions, method="context_kv")
        return append(cache, (k,), (v,), new.count)

    return init, absorb


def make_block(
    config: BlockDrafterConfig, cache: KVCache, target: TargetHead, root: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Return the embeddings [B, T, E] and positions int32 [B, T] of the block after `root` [B]."""
    # The anchor comes right after the cached context and has no feature of its own yet.
    masks = jnp.full((root.shape[0], config.block_size - 1), config.mask_token_id, root.dtype)
    tokens = jnp.concatenate([root[:, None], masks], axis=1)
    return target.embed(tokens), cache.length[:, None] + jnp.arange(config.block_size)


def resize(config: BlockDrafterConfig, depth: int) -> BlockDrafterConfig:
    """Return `config` with blocks of `depth` drafted slots after the anchor."""
    return dataclasses.replace(config, block_size=depth + 1)


def rewind(cache: KVCache, length: jax.Array) -> KVCache:
    """Rewind the cache to each sequence's first `length` int32 [B] tokens; rows at or beyond it are
    masked.
    """
    return cache.replace(length=length)
