"""The Falcon drafter: a step proposes K tokens after every node; see `network` for the model."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from jaxspec.core.cache import allocate, append
from jaxspec.core.state import KVCache
from jaxspec.drafters import scratch as scratches
from jaxspec.drafters.base import Committed, Drafter, Nodes, Proposal, TargetHead
from jaxspec.drafters.falcon.network import Falcon, FalconConfig
from jaxspec.drafters.pairs import check_layers, spread
from jaxspec.drafters.scratch import Scratch
from jaxspec.targets.attention import full_mask


class FalconState(flax.struct.PyTreeNode):
    """State that is kept between rounds. If a text has fewer than K pairs, the first entries of the
    window are zeros.

    Attributes:
      cache: keys and values of the committed pairs.
      token: int32 [B, K], tokens of the last K pairs; the last one is the root.
      fused: [B, K, E], their fused features.
      memory: [B, K + 1, Z], the LSTM's state before and after each of them.
    """

    cache: KVCache
    token: jax.Array
    fused: jax.Array
    memory: jax.Array


class FalconRows(flax.struct.PyTreeNode):
    """Rows of one round.

    Attributes:
      rows: the scratch; its `hidden` is feature, output and LSTM state concatenated,
        [B, R, 2 E + Z].
      token: int32 [B, R], each row's token.
      best: int32 [B, R], the most probable token that each row proposes.
    """

    rows: Scratch
    token: jax.Array
    best: jax.Array


def make_falcon_drafter(config: FalconConfig) -> Drafter:
    """Make Falcon: K = `config.slots` tokens per step, any number of steps.

    A step may start from a node at any slot of its block. The tokens before it in the block are
    assumed to be the most probable ones, see `Proposal`.

    Raises:
      ValueError: more than one layer, or no LSTM.
    """
    check_layers(config.num_layers, "a Falcon drafter")
    if config.lstm_size < 1 or config.lstm_layers < 1:
        raise ValueError(
            f"lstm_size is {config.lstm_size}, lstm_layers {config.lstm_layers}: give at least 1 of each"
        )
    functions = (functools.partial(f, config) for f in (_init, _absorb, _start, _expand))
    project = functools.partial(_project, config)
    return Drafter(config.feature_layers, config.depth, config.slots, *functions, project=project)


def _init(config: FalconConfig, batch: int, capacity: int, dtype: Any) -> FalconState:
    slots = config.slots
    state_size = 2 * config.lstm_layers * config.lstm_size
    return FalconState(
        allocate(config, batch, capacity, dtype),
        jnp.zeros((batch, slots), jnp.int32),
        jnp.zeros((batch, slots, config.hidden_size), dtype),
        jnp.zeros((batch, slots + 1, state_size), dtype),
    )


def _absorb(
    config: FalconConfig, params: Any, state: FalconState, target: TargetHead, new: Committed
) -> FalconState:
    apply = _applied(config, params)
    fused = apply(new.features, method="fuse")
    x, memory = apply(target.embed(new.following), fused, state.memory[:, -1], method="read")
    k, v = apply(x, new.position[:, None] + jnp.arange(x.shape[1]), method="context_kv")
    return FalconState(
        append(state.cache, (k,), (v,), new.count),
        _slide(state.token, new.following, new.count),
        _slide(state.fused, fused, new.count),
        _slide(state.memory, memory, new.count),
    )


def _start(
    config: FalconConfig,
    params: Any,
    state: FalconState,
    target: TargetHead,
    root: jax.Array,
    rows: int,
) -> tuple[Proposal, FalconRows]:
    apply, slots, batch = _applied(config, params), config.slots, root.shape[0]
    x, memory = apply(target.embed(state.token), state.fused, state.memory[:, 0], method="read")
    positions = state.cache.length[:, None] - slots + jnp.arange(slots)
    hidden, (k, v) = apply(x, positions, full_mask(batch, slots), _before(config, state))
    proposal, best = _propose(config, params, hidden, 1)
    row = jnp.concatenate([state.fused, hidden, memory], -1)
    kept = scratches.empty(config, batch, rows, hidden.dtype, row.shape[-1])
    kept = scratches.write(kept, (k,), (v,), row, 0)
    kept = kept.replace(visible=kept.visible.at[:, :slots, :slots].set(jnp.tri(slots, dtype=bool)))
    none = jnp.zeros((batch, rows), jnp.int32)
    tokens, best = (none.at[:, :slots].set(x) for x in (state.token, best))
    return proposal, FalconRows(kept, tokens, best)


def _expand(
    config: FalconConfig,
    params: Any,
    state: FalconState,
    scratch: FalconRows,
    target: TargetHead,
    nodes: Nodes,
    first: jax.Array,
) -> tuple[Proposal, FalconRows]:
    slots, (batch, count) = config.slots, nodes.token.shape
    apply = _applied(config, params)
    token, feature, memory = _windows(scratch, nodes, slots, config.hidden_size)
    each = (batch * count, slots)
    flat = (
        target.embed(token).reshape(*each, -1),
        feature.reshape(*each, -1),
        memory.reshape(each[0], -1),
    )
    x, memory = (out.reshape(batch, count * slots, -1) for out in apply(*flat, method="read"))
    kept = scratches.look(scratch.rows, nodes.source, slots, first)
    positions = (
        state.cache.length[:, None, None] + nodes.depth[..., None] + jnp.arange(slots) - slots
    )
    earlier = (*kept.layer(0), first)
    mask = _relaxed(kept, count, slots, first)
    before = _before(config, state)
    hidden, (k, v) = apply(x, positions.reshape(batch, -1), mask, before, earlier)
    proposal, best = _propose(config, params, hidden, count)
    row = jnp.concatenate([feature.reshape(x.shape), hidden, memory], -1)
    kept = scratches.write(kept, (k,), (v,), row, first)
    written = ((scratch.token, token.reshape(batch, -1)), (scratch.best, best))
    return proposal, FalconRows(
        kept, *(jax.lax.dynamic_update_slice(old, new, (0, first)) for old, new in written)
    )


def _applied(config: FalconConfig, params: Any) -> Callable[..., Any]:
    return functools.partial(Falcon(config).apply, {"params": params["params"]})


def _before(config: FalconConfig, state: FalconState) -> tuple[Any, ...]:
    """Return the cached pairs before the root's block, as the attention's prefix."""
    length = jnp.maximum(state.cache.length - config.slots, 0)
    return state.cache.replace(length=length).prefix(0)


def _propose(
    config: FalconConfig, params: Any, hidden: jax.Array, nodes: int
) -> tuple[Proposal, jax.Array]:
    """Compute the proposal of M = `nodes` nodes and the most probable token of every slot, int32
    [B, M * K], from outputs [B, M * K, E].
    """
    logits = spread(params, _project(config, params, hidden)[0], config.vocab_size)
    best = logits.argmax(-1).astype(jnp.int32)
    shape = hidden.shape[0], nodes, config.slots, -1
    return Proposal(logits.reshape(shape), hidden=hidden.reshape(shape)), best


def _project(config: FalconConfig, params: Any, hidden: jax.Array) -> tuple[jax.Array, None]:
    return _applied(config, params)(hidden, method="logits"), None


def _slide(old: jax.Array, new: jax.Array, count: jax.Array) -> jax.Array:
    """Append the first `count` int32 [B] rows of `new` [B, T, ...] to `old` [B, n, ...], and return
    the last n rows, [B, n, ...].
    """
    rows = jnp.concatenate([old, new.astype(old.dtype)], axis=1)
    return jax.vmap(lambda x, at: jax.lax.dynamic_slice_in_dim(x, at, old.shape[1]))(rows, count)


def _windows(
    scratch: FalconRows, nodes: Nodes, slots: int, width: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Collect the last K pairs of each node's path: tokens int32 [B, M, K], features [B, M, K, E],
    and the LSTM's state before them [B, M, Z].

    For a node at slot j of its block, the last j + 1 pairs are proposed ones; the others are the
    block's own last rows.
    """
    batch, count = nodes.source.shape
    slot = nodes.source % slots
    place = slot[..., None] + 1 + jnp.arange(slots)
    own = place < slots
    row = ((nodes.source - slot)[..., None] + place % slots).reshape(batch, -1)

    def take(x: jax.Array, index: jax.Array, *shape: int) -> jax.Array:
        return jnp.take_along_axis(
            x, index.reshape(batch, -1, *(1,) * (x.ndim - 2)), axis=1
        ).reshape(batch, count, *shape)

    proposed = take(scratch.best, row, slots)
    if nodes.before is not None:
        # Not needed at the node itself, which is set below.
        proposed = jnp.take_along_axis(nodes.before, jnp.clip(place - slots, 0, slots - 2), axis=2)
    token = jnp.where(own, take(scratch.token, row, slots), proposed)
    hidden = take(scratch.rows.hidden, row, slots, -1)
    feature = jnp.where(own[..., None], hidden[..., :width], hidden[..., width : 2 * width])
    memory = take(scratch.rows.hidden, nodes.source, -1)[..., 2 * width :]
    return token.at[..., -1].set(nodes.token), feature, memory


def _relaxed(rows: Scratch, count: int, slots: int, first: jax.Array) -> jax.Array:
    """Return mask words of a step's `count` blocks of K rows from `first` on: the rows that `look`
    makes visible, and the later rows of the same block.
    """
    index = jnp.arange(rows.visible.shape[-1])
    block = (index - first) // slots
    inside = (index >= first) & (index < first + count * slots)
    same = (block[:, None] == block) & inside & inside[:, None]
    return scratches.pack_visible(rows.replace(visible=rows.visible | same), count * slots, first)
