"""The SpecBlock drafter: a step proposes a block of K tokens after every node."""

from __future__ import annotations

import functools
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from jaxspec.core.cache import allocate, append
from jaxspec.core.state import KVCache
from jaxspec.drafters import scratch as rows_of
from jaxspec.drafters.base import Committed, Drafter, Nodes, Proposal, TargetHead, whole_vocabulary
from jaxspec.drafters.scratch import Scratch
from jaxspec.drafters.specblock.network import (
    RANK_LOGPROBS,
    SpecBlock,
    SpecBlockConfig,
    rank_features,
    slot_positions,
)

_CHUNK = 128  # pairs that `absorb` reads at once: attention scores are K * _CHUNK by K * capacity


class SpecBlockState(flax.struct.PyTreeNode):
    """State that is kept between rounds.

    Attributes:
      cache: K rows per committed pair. The last pair's rows are written too, but later blocks must
        see only some of them, so they read them from `k` and `v`.
      k: [L, B, K, Kh, D], keys of the last pair's slots.
      v: [L, B, K, Kh, D], values of the last pair's slots.
      hidden: [B, K, E], outputs of the last pair's slots before the final norm.
    """

    cache: KVCache
    k: jax.Array
    v: jax.Array
    hidden: jax.Array


def make_specblock_drafter(config: SpecBlockConfig) -> Drafter:
    """Make SpecBlock. The root's block costs no forward of its own, since `absorb` computed it;
    each further block costs one.

    Raises:
      ValueError: `rank_top` does not suit the rank features, or there is no slot or no block.
    """
    check_sizes(config)
    functions = (functools.partial(f, config) for f in (_init, _absorb, _start, _expand))
    return Drafter(
        config.feature_layers,
        config.depth,
        config.slots,
        *functions,
        rank_classes=config.rank_classes,
        project=functools.partial(_project, config),
    )


def check_sizes(config: SpecBlockConfig) -> None:
    """Raise a one-line ValueError if sizes are out of range."""
    drafted = config.draft_vocab_size or config.vocab_size
    if drafted < RANK_LOGPROBS:
        raise ValueError(
            f"{drafted} tokens can be drafted: a rank head reads {RANK_LOGPROBS}, so give it more"
        )
    if config.rank_top and not RANK_LOGPROBS <= config.rank_top <= drafted:
        raise ValueError(
            f"rank_top is {config.rank_top}: give {RANK_LOGPROBS} to {drafted}, the tokens that can "
            "be drafted, or 0 for all"
        )
    if config.slots < 1 or config.blocks < 1:
        raise ValueError(
            f"slots is {config.slots} and blocks is {config.blocks}: give at least 1 of each"
        )


def _init(config: SpecBlockConfig, batch: int, capacity: int, dtype: Any) -> SpecBlockState:
    c = config
    kv = jnp.zeros((c.num_layers, batch, c.slots, c.num_kv_heads, c.head_dim), dtype)
    hidden = jnp.zeros((batch, c.slots, c.hidden_size), dtype)
    return SpecBlockState(allocate(c, batch, capacity * c.slots, dtype), kv, kv, hidden)


def _absorb(
    config: SpecBlockConfig, params: Any, state: SpecBlockState, target: TargetHead, new: Committed
) -> SpecBlockState:
    rows = new.token.shape[1]
    chunk = rows
    while chunk > _CHUNK and chunk % 2 == 0:
        chunk //= 2
    embedded = target.embed(new.following)
    if chunk == rows:
        return _read(config, params, state, embedded, new.features, new.position, new.count)

    def step(state: SpecBlockState, index: jax.Array) -> tuple[SpecBlockState, None]:
        first = index * chunk
        tokens, features = (
            jax.lax.dynamic_slice_in_dim(x, first, chunk, axis=1) for x in (embedded, new.features)
        )
        count = jnp.clip(new.count - first, 0, chunk)
        return _read(config, params, state, tokens, features, new.position + first, count), None

    return jax.lax.scan(step, state, jnp.arange(rows // chunk))[0]


def _read(
    config: SpecBlockConfig,
    params: Any,
    state: SpecBlockState,
    tokens: jax.Array,
    features: jax.Array,
    position: jax.Array,
    count: jax.Array,
) -> SpecBlockState:
    """Return the state after T more pairs.

    Args:
      tokens: [B, T, E], token embeddings.
      features: [B, T, F], target features.
      position: int32 [B], position of the first pair.
      count: int32 [B], number of valid pairs.
    """
    module, slots = SpecBlock(config), config.slots
    weights = {"params": params["params"]}
    condition = module.apply(weights, features, method="condition")
    places = position[:, None] + jnp.arange(tokens.shape[1])
    hidden, k, v = module.apply(
        weights, condition, tokens, slot_positions(places, slots), cache=state.cache
    )
    last = (jnp.maximum(count - 1, 0) * slots)[:, None] + jnp.arange(slots)  # [B, K]
    some = count > 0

    def keep(new: jax.Array, old: jax.Array) -> jax.Array:
        return jnp.where(some[:, None, None, None], new.astype(old.dtype), old)

    return SpecBlockState(
        append(state.cache, (k,), (v,), count * slots),
        keep(jnp.take_along_axis(k, last[None, :, :, None, None], axis=2), state.k),
        keep(jnp.take_along_axis(v, last[None, :, :, None, None], axis=2), state.v),
        jnp.where(
            some[:, None, None],
            jnp.take_along_axis(hidden, last[..., None], axis=1),
            state.hidden,
        ),
    )


def _start(
    config: SpecBlockConfig,
    params: Any,
    state: SpecBlockState,
    target: TargetHead,
    root: jax.Array,
    rows: int,
) -> tuple[Proposal, Scratch]:
    slots, batch = config.slots, root.shape[0]
    scratch = rows_of.empty(config, batch, rows, state.hidden.dtype)
    scratch = rows_of.write(scratch, (state.k,), (state.v,), state.hidden, 0)
    causal = jnp.broadcast_to(jnp.tri(slots, dtype=bool), (batch, slots, slots))
    scratch = scratch.replace(visible=scratch.visible.at[:, :slots, :slots].set(causal))
    return _propose(config, params, state.hidden[:, None]), scratch


def _expand(
    config: SpecBlockConfig,
    params: Any,
    state: SpecBlockState,
    scratch: Scratch,
    target: TargetHead,
    nodes: Nodes,
    first: jax.Array,
) -> tuple[Proposal, Scratch]:
    slots, (batch, count) = config.slots, nodes.token.shape
    scratch = rows_of.look(scratch, nodes.source, slots, first)
    mask = rows_of.pack_visible(scratch, count * slots, first)
    condition = jnp.take_along_axis(scratch.hidden, nodes.source[..., None], axis=1)
    # The last pair's slots are in the scratch, so its rows in the cache must not be visible.
    before = jnp.maximum(state.cache.length - slots, 0)
    places = jnp.broadcast_to((before // slots)[:, None], (batch, count))
    hidden, k, v = SpecBlock(config).apply(
        {"params": params["params"]},
        condition,
        target.embed(nodes.token),
        slot_positions(places, slots),
        mask,
        state.cache.replace(length=before),
        (scratch.k[0], scratch.v[0], first),
    )
    proposal = _propose(config, params, hidden.reshape(batch, count, slots, -1))
    return proposal, rows_of.write(scratch, (k,), (v,), hidden, first)


def _propose(config: SpecBlockConfig, params: Any, hidden: jax.Array) -> Proposal:
    """Compute the proposal of M nodes from the outputs [B, M, K, E] of their slots."""
    normed = SpecBlock(config).apply({"params": params["params"]}, hidden, method="final")
    logits, ranks = _project(config, params, normed)
    if config.draft_vocab_size is not None:
        logits = whole_vocabulary(logits, params["draft"]["ids"], config.vocab_size)
    return Proposal(logits, ranks.argmax(-1).astype(jnp.int32), normed, class_logits=ranks)


def _project(
    config: SpecBlockConfig, params: Any, normed: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Compute logits [..., D] and class logits float32 [..., C] of outputs after the final norm."""
    module, weights = SpecBlock(config), {"params": params["params"]}
    logits = module.apply(weights, normed, method="logits")
    # The rank head learns from the distribution and does not shape it, as in pre-training.
    fixed, known = jax.lax.stop_gradient((normed, logits))
    ranks = module.apply(weights, fixed, rank_features(known, config.rank_top), method="rank")
    return logits, ranks.astype(jnp.float32)
