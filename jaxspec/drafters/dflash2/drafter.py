"""The DFlash2 drafter: one forward of the block, then one token per step from every node.

A node proposes the candidates of the next slot alone: the most probable tokens of the block's
logits there, scored after the node's own token.
"""

from __future__ import annotations

import functools
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from jaxspec.core.sampling.top_k import top_k
from jaxspec.core.state import KVCache
from jaxspec.drafters.base import Drafter, Nodes, Proposal, TargetHead
from jaxspec.drafters.dflash.drafter import make_block, make_context_functions
from jaxspec.drafters.dflash2.network import DFlash2, DFlash2Config


class DFlash2Scratch(flax.struct.PyTreeNode):
    """The slots of one round, K of them.

    Attributes:
      hidden: [B, K, E], hidden states.
      candidates: int32 [B, K, C], the most probable tokens of each slot.
      logits: float32 [B, K, C], their logits, before the selector.
    """

    hidden: jax.Array
    candidates: jax.Array
    logits: jax.Array


def make_dflash2_drafter(config: DFlash2Config) -> Drafter:
    """Make DFlash2."""
    init, absorb = make_context_functions(config, DFlash2(config))
    start, expand = (functools.partial(f, config) for f in (_start, _expand))
    return Drafter(config.feature_layers, config.depth, 1, init, absorb, start, expand)


def _start(
    config: DFlash2Config,
    params: Any,
    cache: KVCache,
    target: TargetHead,
    root: jax.Array,
    rows: int,
) -> tuple[Proposal, DFlash2Scratch]:
    block, positions = make_block(config, cache, target, root)
    if config.embedding_scale != 1:
        block *= config.embedding_scale
    hidden = DFlash2(config).apply(params, block, positions, cache)[:, 1 : rows + 1]
    logits = target.unembed(hidden).astype(jnp.float32) * config.output_multiplier
    if config.logit_softcap is not None:
        logits = config.logit_softcap * jnp.tanh(logits / config.logit_softcap)
    best, candidates = top_k(logits, config.selector_top_k)
    scratch = DFlash2Scratch(hidden, candidates, best)
    return _propose(config, params, scratch, root[:, None], jnp.zeros_like(root)[:, None]), scratch


def _expand(
    config: DFlash2Config,
    params: Any,
    cache: KVCache,
    scratch: DFlash2Scratch,
    target: TargetHead,
    nodes: Nodes,
    first: jax.Array,
) -> tuple[Proposal, DFlash2Scratch]:
    # Nodes at the last depth are never drafted from, but empty entries may say any depth.
    slot = jnp.minimum(nodes.depth, scratch.hidden.shape[1] - 1)
    return _propose(config, params, scratch, nodes.token, slot), scratch


def _propose(
    config: DFlash2Config,
    params: Any,
    scratch: DFlash2Scratch,
    previous: jax.Array,
    slot: jax.Array,
) -> Proposal:
    """Propose the candidates of slots `slot` int32 [B, M] after tokens `previous` int32 [B, M]."""
    hidden, candidates, logits = (
        jnp.take_along_axis(x, slot[..., None], axis=1)
        for x in (scratch.hidden, scratch.candidates, scratch.logits)
    )
    score = logits + DFlash2(config).apply(params, previous, hidden, candidates, method="select")
    whole = jnp.full((*slot.shape, config.vocab_size), -jnp.inf)
    whole = jnp.put_along_axis(whole, candidates, score, axis=-1, inplace=False)
    return Proposal(whole[:, :, None], hidden=hidden[:, :, None])
