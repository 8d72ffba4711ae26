"""The TreeFlash drafter: one forward of the block, then one token per step from every node.

What follows a node depends on its depth and its token alone. Rounds compute it at once for the most
probable tokens of every slot, and look nodes up in these tables; see `base.Conditions`.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from jaxspec.core.state import KVCache
from jaxspec.drafters.base import Conditions, Drafter, Nodes, Proposal, TargetHead
from jaxspec.drafters.dflash.drafter import make_block, make_context_functions
from jaxspec.drafters.treeflash.network import TreeFlash, TreeFlashConfig


def make_treeflash_drafter(config: TreeFlashConfig) -> Drafter:
    """Make TreeFlash. Without a correction, all nodes of a depth propose the same."""
    init, absorb = make_context_functions(config, TreeFlash(config))
    start, expand = (functools.partial(f, config) for f in (_start, _expand))
    conditions = Conditions(config.conditions, functools.partial(_marginals, config))
    return Drafter(
        config.feature_layers,
        config.depth,
        1,
        init,
        absorb,
        start,
        expand,
        conditions=conditions if config.correction else None,
    )


def _start(
    config: TreeFlashConfig,
    params: Any,
    cache: KVCache,
    target: TargetHead,
    root: jax.Array,
    rows: int,
) -> tuple[Proposal, jax.Array]:
    """Draft after the root. The scratch is [B, K, E], the slots before the final norm."""
    block, positions = make_block(config, cache, target, root)
    slots = TreeFlash(config).apply(params, block, positions, cache)[:, 1 : rows + 1]
    return _propose(config, params, target, slots[:, :1], root[:, None]), slots


def _expand(
    config: TreeFlashConfig,
    params: Any,
    cache: KVCache,
    scratch: jax.Array,
    target: TargetHead,
    nodes: Nodes,
    first: jax.Array,
) -> tuple[Proposal, jax.Array]:
    # Nodes at the last depth are never drafted from, but empty entries may say any depth.
    slot = jnp.minimum(nodes.depth, scratch.shape[1] - 1)
    slots = jnp.take_along_axis(scratch, slot[..., None], axis=1)
    return _propose(config, params, target, slots, nodes.token), scratch


def _propose(
    config: TreeFlashConfig, params: Any, target: TargetHead, slots: jax.Array, previous: jax.Array
) -> Proposal:
    """Propose at `slots` [B, M, E], before the final norm, after tokens `previous` int32 [B, M]."""
    embedded = target.embed(previous)
    hidden = TreeFlash(config).apply(params, slots, embedded, method="correct")
    return Proposal(target.unembed(hidden)[:, :, None], hidden=hidden[:, :, None])


def _marginals(
    config: TreeFlashConfig, params: Any, scratch: jax.Array, target: TargetHead
) -> jax.Array:
    """Compute the logits [B, K, V] of all slots without the tokens before them."""
    return target.unembed(TreeFlash(config).apply(params, scratch, method="marginal"))
