"""The DSpark drafter: one forward of the backbone a round, then one token per step from every node.

A step costs no forward of the backbone. A node of depth d that holds token x proposes
U_d + W2 latent(W1[x], h_d): the logits of slot d, and what the Markov head adds after x. So every
node is conditioned on the tokens of its own branch: on its own token with the vanilla and the gated
head, on its whole path with the recurrent one.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from jaxspec.core.state import KVCache
from jaxspec.drafters.base import Drafter, Lookahead, Nodes, Proposal, TargetHead
from jaxspec.drafters.dflash.drafter import make_block, make_context_functions
from jaxspec.drafters.dspark.network import DSpark, DSparkConfig
from jaxspec.drafters.pairs import spread
from jaxspec.targets.head import project_draft


class DSparkScratch(flax.struct.PyTreeNode):
    """What the steps of one round share.

    Attributes:
      hidden: [B, K, E], the backbone's hidden states of the slots that propose.
      logits: [B, K, D], their logits over the draft vocabulary, before the Markov head.
      state: [B, R, r], the recurrent state of each row that was computed; None without one. Rows
        are in the order of `Nodes.source`.
    """

    hidden: jax.Array
    logits: jax.Array
    state: jax.Array | None


def make_dspark_drafter(config: DSparkConfig) -> Drafter:
    """Make DSpark. Without a Markov head, all nodes of a depth propose the same."""
    init, absorb = make_context_functions(config, DSpark(config))
    start, expand = (functools.partial(f, config) for f in (_start, _expand))
    return Drafter(
        config.feature_layers,
        config.depth,
        1,
        init,
        absorb,
        start,
        expand,
        confident=config.confidence,
        look_ahead=functools.partial(_look_ahead, config)
        if config.markov_rank and config.markov_head != "rnn"
        else None,
    )


def resize(config: Any, depth: int) -> Any:
    """Return `config` for paths of `depth` tokens.

    A shorter block would change the proposals of slots that see the whole block, so only a causal
    backbone gets one. The others stop early in the block that they were trained for.
    """
    if depth > config.depth or config.causal:
        return dataclasses.replace(config, block_size=config.block_size + depth - config.depth)
    return config


def _slots(
    config: DSparkConfig,
    params: Any,
    cache: KVCache,
    target: TargetHead,
    root: jax.Array,
    rows: int,
) -> tuple[jax.Array, jax.Array]:
    """Run the backbone over the block after the root, and project the slots that may be needed.

    Args:
      root: int32 [B].
      rows: number of slots that the round computes at most, so no path is longer.

    Returns:
      (hidden states [B, K, E], logits [B, K, D] over the draft vocabulary).
    """
    slots, positions = make_block(config, cache, target, root)
    block = DSpark(config).apply(params, slots, positions, cache)
    hidden = block[:, config.first_slot : config.first_slot + rows]
    whole = config.draft_vocab_size is None
    return hidden, target.unembed(hidden) if whole else project_draft(params, hidden)


def _start(
    config: DSparkConfig,
    params: Any,
    cache: KVCache,
    target: TargetHead,
    root: jax.Array,
    rows: int,
) -> tuple[Proposal, DSparkScratch]:
    hidden, logits = _slots(config, params, cache, target, root, rows)
    own, first = (hidden[:, :1], logits[:, :1]), root[:, None]
    slot = jnp.zeros_like(first)
    proposal, state = _propose(config, params, first, slot, *own, None)
    if state is not None:
        rest = jnp.zeros((root.shape[0], rows - 1, state.shape[-1]), state.dtype)
        state = jnp.concatenate([state, rest], axis=1)
    return proposal, DSparkScratch(hidden, logits, state)


def _expand(
    config: DSparkConfig,
    params: Any,
    cache: KVCache,
    scratch: DSparkScratch,
    target: TargetHead,
    nodes: Nodes,
    first: jax.Array,
) -> tuple[Proposal, DSparkScratch]:
    # Nodes at the last depth are never drafted from, but empty entries may say any depth.
    slot = jnp.minimum(nodes.depth, scratch.hidden.shape[1] - 1)
    hidden, logits = (
        jnp.take_along_axis(rows, slot[..., None], axis=1)
        for rows in (scratch.hidden, scratch.logits)
    )
    before = scratch.state
    if before is not None:
        before = jnp.take_along_axis(before, nodes.source[..., None], axis=1)
    proposal, state = _propose(config, params, nodes.token, slot, hidden, logits, before)
    if state is not None:
        state = jax.lax.dynamic_update_slice(scratch.state, state, (0, first, 0))
    return proposal, scratch.replace(state=state)


def _look_ahead(config: DSparkConfig, params: Any, scratch: DSparkScratch) -> Lookahead:
    def between(previous: jax.Array, following: jax.Array) -> jax.Array:
        hidden = scratch.hidden[:, 1 : 1 + previous.shape[1], None]
        hidden = jnp.broadcast_to(hidden, (*previous.shape, hidden.shape[-1]))
        if "draft" in params:  # W2 has the draft vocabulary's columns
            ids = params["draft"]["ids"]
            following = jnp.minimum(jnp.searchsorted(ids, following), len(ids) - 1)
        return DSpark(config).apply(params, previous, hidden, following, method="bias_between")

    return Lookahead(spread(params, scratch.logits, config.vocab_size), between)


def _propose(
    config: DSparkConfig,
    params: Any,
    previous: jax.Array,
    slot: jax.Array,
    hidden: jax.Array,
    logits: jax.Array,
    state: jax.Array | None,
) -> tuple[Proposal, jax.Array | None]:
    """Propose the token after each of M nodes.

    Args:
      previous: int32 [B, M], tokens of the nodes.
      slot: int32 [B, M], the slots that propose, from 0.
      hidden: [B, M, E], hidden states of the slots that propose.
      logits: [B, M, D], their logits without the Markov head.
      state: [B, M, r], recurrent states before the tokens, or None.

    Returns:
      (the proposal, the recurrent states after the tokens [B, M, r] or None).
    """
    module, confidence = DSpark(config), None
    if config.markov_rank:
        bias, state = module.apply(params, previous, hidden, state, method="step_bias")
        logits += bias
    whole = spread(params, logits, config.vocab_size)
    if config.confidence:
        confidence = module.apply(params, previous, hidden, method="confidence")
        if config.confidence_temperatures:
            divisors = jnp.array(config.confidence_temperatures)
            confidence /= divisors[jnp.minimum(slot, len(divisors) - 1)]
        confidence = confidence[:, :, None]
    return Proposal(whole[:, :, None], None, hidden[:, :, None], confidence), state
