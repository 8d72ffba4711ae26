"""Tree attention in plain JAX that reads the live rows of the cache only.

It runs where no kernel can. The reference attends to every row of the cache and masks those that
are not live, so its time grows with the capacity. Here a loop takes one block of rows after the
other and keeps a running maximum and sum (online softmax). On a GPU the host drives such a loop: a
few new rows go through the reference on the shortest of some fixed parts of the cache instead.
"""

from __future__ import annotations

import functools

import jax.numpy as jnp
from jax import lax

from pallas_kernels import reference
from pallas_kernels.attention.frame import Scoring, differentiable
from pallas_kernels.device import current_device
from pallas_kernels.reference import (
    LOWEST,
    fold_queries,
    fold_sinks,
    new_rows_seen,
    place_of,
    unfold_queries,
)
from pallas_kernels.tuning import Problem, Steps, live_steps

_product = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)


def tree_attention(q, k, v, positions, mask=None, prefix=None, window=None, scale=None, sinks=None):
    """Compute `pallas_kernels.reference.tree_attention`; `prefix` must be given.

    The derivative is the reference's, which then also computes the value.
    """
    steps = live_steps(Problem.of(q, k, v, prefix), current_device())
    scoring = Scoring(window, scale)
    return _attend(q, k, v, positions, mask, prefix, sinks, scoring, steps, False)


def _call(q, k, v, cache_k, cache_v, rest, *, scoring: Scoring, cut: Steps, interpret: bool):
    layer, length, first, positions, mask, sinks = rest
    prefix = (cache_k, cache_v, layer, length, first)
    if cut.keys is None:
        return _on_parts(q, k, v, positions, mask, prefix, scoring, sinks, cut.parts)
    return _in_blocks(q, k, v, positions, mask, prefix, scoring, sinks, cut.keys)


_attend = differentiable(_call)


def _on_parts(q, k, v, positions, mask, prefix, scoring, sinks, parts: tuple[int, ...]):
    """Run the reference on the first `parts[i]` rows of the cache, for the smallest part that holds
    all live rows.
    """
    cache_k, cache_v, layer, length, first = prefix

    def on(rows: int):
        def attend(layer):
            part = [
                lax.dynamic_slice(cache, place_of(layer), _block(cache, q.shape[0], rows))
                for cache in (cache_k, cache_v)
            ]
            return reference.tree_attention(
                q, k, v, positions, mask, (*part, 0, length, first), *scoring, sinks
            )

        return attend

    end = jnp.max(length if first is None else first + length)
    chosen = sum(((end > rows).astype(jnp.int32) for rows in parts[:-1]), jnp.int32(0))
    return lax.switch(chosen, [on(rows) for rows in parts], layer)


def _in_blocks(q, k, v, positions, mask, prefix, scoring: Scoring, sinks, keys: int):
    """Attend to the new rows, then to the live rows of the cache, `keys` of them at a time."""
    cache_k, cache_v, layer, length, first = prefix
    batch, _, kv_heads, _ = k.shape
    folded, window = fold_queries(q, kv_heads, scoring.scale), scoring.window
    capacity, begin = cache_k.shape[3], jnp.zeros_like(length) if first is None else first
    end = begin + length
    start = begin
    if window is not None:
        start = begin + jnp.maximum(positions.min(axis=1) - window + 1, 0)

    def step(i, state):
        # The last block begins earlier if the cache holds no whole number of blocks.
        at = jnp.minimum(i * keys, capacity - keys)
        block = [
            lax.dynamic_slice(cache, place_of(layer, at), _block(cache, batch, keys))[0].astype(
                q.dtype
            )
            for cache in (cache_k, cache_v)
        ]
        slot = at + jnp.arange(keys)
        seen = (slot >= begin[:, None]) & (slot < end[:, None]) & (slot >= i * keys)
        seen = seen[:, None]
        if window is not None:
            place = slot - begin[:, None, None]
            seen = seen & (place > positions[..., None] - window)
        return _online(folded, *block, seen, state)

    state = _begin(folded, k.swapaxes(1, 2), v.swapaxes(1, 2), new_rows_seen(q, k, mask))
    if sinks is not None:
        state = _add_sinks(fold_sinks(sinks, kv_heads, q.shape[1]), state)
    count = -(-jnp.max(end) // keys)
    total, top, weight = lax.fori_loop(jnp.min(start) // keys, count, step, state)
    # Rows that see nothing have collected weights of masked keys.
    out = total / jnp.where(top > LOWEST, weight, jnp.inf)[..., None]
    return unfold_queries(out.astype(q.dtype), q.shape)


def _block(cache, batch: int, rows: int) -> tuple[int, ...]:
    """Return the shape of some rows of a layer of a cache [L, B, K, S, D]."""
    return 1, batch, cache.shape[2], rows, cache.shape[4]


def _begin(folded, keys, values, seen):
    """Begin the online softmax with keys and values [B, K, S, D].

    The state is float32 (total [B, K, M, D], top [B, K, M], weight [B, K, M]). A row that has seen
    nothing yet gives masked keys a weight, which the first visible key shrinks to zero.
    """
    scores = _score(folded, keys, seen)
    top = scores.max(axis=-1)
    total, weight = _weigh(scores, top, values)
    return total, top, weight


def _add_sinks(sinks, state):
    """Add logits [1, K, M] that have no values to the online softmax of `_begin`."""
    total, top, weight = state
    new_top = jnp.maximum(top, sinks)
    shrink = jnp.exp(top - new_top)
    return total * shrink[..., None], new_top, weight * shrink + jnp.exp(sinks - new_top)


def _online(folded, keys, values, seen, state):
    """Add a block of keys and values [B, K, S, D] to the online softmax of `_begin`."""
    total, top, weight = state
    scores = _score(folded, keys, seen)
    new_top = jnp.maximum(top, scores.max(axis=-1))
    shrink = jnp.exp(top - new_top)
    added, more = _weigh(scores, new_top, values)
    return total * shrink[..., None] + added, new_top, weight * shrink + more


def _score(folded, keys, seen):
    """Compute the scores [B, K, M, S] of keys, LOWEST where they are not seen."""
    if keys.shape[2] == 1:
        # For a single key XLA would compile a product of its own in every layer.
        scores = (folded.astype(jnp.float32) * keys).sum(axis=-1, keepdims=True)
    else:
        scores = _product("bkmd,bksd->bkms", folded, keys)
    return reference.mask_scores(scores, seen)


def _weigh(scores, top, values):
    """Return the sums of weighted values [B, K, M, D] and of weights [B, K, M]."""
    weights = jnp.exp(scores - top[..., None])
    total = _product("bkms,bksd->bkmd", weights.astype(values.dtype), values)
    return total, weights.sum(axis=-1)
