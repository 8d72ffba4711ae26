"""The Falcon drafter: a step proposes K tokens after every node; see `network` for the model."""

from __future__ import annotations

import functools

import flax.struct
import jax
import jax.numpy as jnp

from jaxspec.core.cache import allocate, append
from jaxspec.core.state import KVCache
from jaxspec.drafters import scratch as scratches
from jaxspec.drafters.base import Drafter, Proposal
from jaxspec.drafters.falcon.config import FalconConfig
from jaxspec.drafters.falcon.network import Falcon
from jaxspec.drafters.pairs import check_layers, spread
from jaxspec.drafters.scratch import Scratch
from jaxspec.targets.attention import full_mask


@flax.struct.dataclass
class FalconState:
    """What is kept between rounds. Of a text of fewer than K pairs the window's first entries are
    zeros.

    Attributes:
      cache: keys and values of the committed pairs.
      token: int32 [B, K], tokens of the last K pairs; the last is the root.
      fused: [B, K, E], their fused features.
      memory: [B, K + 1, Z], the LSTM's state before and after each of them.
    """

    cache: KVCache
    token: jax.Array
    fused: jax.Array
    memory: jax.Array


@flax.struct.dataclass
class FalconRows:
    """Rows of one round.

    Attributes:
      rows: `hidden` holds feature, output and LSTM state side by side, [B, R, 2 E + Z].
      token: int32 [B, R], a row's token. best: int32 [B, R], the most probable token that it
        proposes.
    """

    rows: Scratch
    token: jax.Array
    best: jax.Array


def make_falcon_drafter(config: FalconConfig) -> Drafter:
    """Falcon: K = `config.slots` tokens a step, any number of steps.

    A node may be drafted from wherever it stands in its block. The tokens before it in the block
    are taken to be the most probable ones, as `Proposal` has it.

    Raises:
      ValueError: more than one layer, or no LSTM.
    """
    check_layers(config.num_layers, "a Falcon drafter")
    if config.lstm_size < 1 or config.lstm_layers < 1:
        raise ValueError(
            f"lstm_size is {config.lstm_size}, lstm_layers {config.lstm_layers}: give at least 1 of each"
        )
    model, slots, width = Falcon(config), config.slots, config.hidden_size
    state_size = 2 * config.lstm_layers * config.lstm_size

    def applied(params):
        return functools.partial(model.apply, {"params": params["params"]})

    def init(batch, capacity, dtype):
        sizes = ((slots, width), (slots + 1, state_size))
        fused, memory = (jnp.zeros((batch, *size), dtype) for size in sizes)
        return FalconState(
            allocate(config, batch, capacity, dtype),
            jnp.zeros((batch, slots), jnp.int32),
            fused,
            memory,
        )

    def absorb(params, state, target, new):
        apply = applied(params)
        fused = apply(new.features, method="fuse")
        x, memory = apply(target.embed(new.following), fused, state.memory[:, -1], method="read")
        k, v = apply(x, new.position[:, None] + jnp.arange(x.shape[1]), method="context_kv")
        windows = zip(
            (state.token, state.fused, state.memory), (new.following, fused, memory), strict=True
        )
        return FalconState(
            append(state.cache, k, v, new.count),
            *(_slide(old, add, new.count) for old, add in windows),
        )

    def before(state):
        """The pairs before the root's block."""
        return (state.cache.k, state.cache.v, 0, jnp.maximum(state.cache.length - slots, 0), None)

    def propose(params, hidden, nodes):
        logits = spread(params, applied(params)(hidden, method="logits"), config.vocab_size)
        return Proposal(logits.reshape(hidden.shape[0], nodes, slots, -1)), logits.argmax(
            -1
        ).astype(jnp.int32)

    def start(params, state, target, root, rows):
        apply, batch = applied(params), root.shape[0]
        x, memory = apply(target.embed(state.token), state.fused, state.memory[:, 0], method="read")
        positions = state.cache.length[:, None] - slots + jnp.arange(slots)
        hidden, (k, v) = apply(x, positions, full_mask(batch, slots), before(state))
        proposal, best = propose(params, hidden, 1)
        kept = scratches.empty(
            1, batch, rows, k.shape[3], k.shape[4], 2 * width + state_size, hidden.dtype
        )
        kept = scratches.write(kept, k, v, jnp.concatenate([state.fused, hidden, memory], -1), 0)
        kept = kept.replace(
            visible=kept.visible.at[:, :slots, :slots].set(jnp.tri(slots, dtype=bool))
        )
        none = jnp.zeros((batch, rows), jnp.int32)
        return proposal, FalconRows(
            kept, none.at[:, :slots].set(state.token), none.at[:, :slots].set(best)
        )

    def expand(params, state, scratch, target, nodes, first):
        apply, (batch, count) = applied(params), nodes.token.shape
        token, feature, memory = _windows(scratch, nodes, slots, width)
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
        earlier = (kept.k[0], kept.v[0], first)
        mask = _relaxed(kept, count, slots, first)
        hidden, (k, v) = apply(x, positions.reshape(batch, -1), mask, before(state), earlier)
        proposal, best = propose(params, hidden, count)
        kept = scratches.write(
            kept, k, v, jnp.concatenate([feature.reshape(x.shape), hidden, memory], -1), first
        )
        written = ((scratch.token, token.reshape(batch, -1)), (scratch.best, best))
        return proposal, FalconRows(
            kept, *(jax.lax.dynamic_update_slice(old, new, (0, first)) for old, new in written)
        )

    return Drafter(config.feature_layers, config.depth, slots, init, absorb, start, expand)


def _slide(old: jax.Array, new: jax.Array, count: jax.Array) -> jax.Array:
    """The last n rows, [B, n, ...], of `old` [B, n, ...] followed by the first `count` int32 [B] of
    `new` [B, T, ...].
    """
    rows = jnp.concatenate([old, new.astype(old.dtype)], axis=1)
    return jax.vmap(lambda x, at: jax.lax.dynamic_slice_in_dim(x, at, old.shape[1]))(rows, count)


def _windows(scratch: FalconRows, nodes, slots: int, width: int):
    """The last K pairs of each node's path: tokens int32 [B, M, K], features [B, M, K, E], LSTM's
    state before them [B, M, Z].

    A node at slot j of its block has its own and j more proposed pairs behind it; the others are
    the block's own last rows.
    """
    batch, count = nodes.source.shape
    slot = nodes.source % slots
    place = slot[..., None] + 1 + jnp.arange(slots)
    own = place < slots
    row = ((nodes.source - slot)[..., None] + place % slots).reshape(batch, -1)

    def take(x, index, *shape):
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
    """Mask words of a step's M blocks of K rows from `first` on: what `look` shows, and the block's
    later rows too.
    """
    index = jnp.arange(rows.visible.shape[-1])
    block = (index - first) // slots
    inside = (index >= first) & (index < first + count * slots)
    same = (block[:, None] == block) & inside & inside[:, None]
    return scratches.mask_words(rows.replace(visible=rows.visible | same), count * slots, first)
