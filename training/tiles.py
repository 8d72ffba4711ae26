"""Per-row losses over the vocabulary, a tile of rows at a time, so that memory is bounded.

A row's loss depends only on its own hidden state, and the output projection is frozen. So each
row's gradient is computed together with its loss, while the tile's logits exist, and kept: [N, E]
instead of [N, V], and nothing is computed twice.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def map_tiled_rows(per_row: Callable, tile: int, hidden: jax.Array, rows, shared):
    """Apply `per_row` to N rows, `tile` of them at a time.

    Differentiable with respect to `hidden` only. A row whose cotangent is 0 adds exactly 0,
    whatever its own gradient is.

    Args:
      per_row: (hidden [t, E], rows with t first, shared) -> (losses float32 [t], extras: pytree
        with t first).
      tile: maximum rows at a time, static.
      hidden: [N, E].
      rows: pytree of arrays with N first.
      shared: pytree that every tile reads, for example the output projection.

    Returns:
      (losses float32 [N], extras with N first).
    """
    return _run(lambda h, r: per_row(h, r, shared), tile, hidden, rows)


def _forward(per_row, tile, hidden, rows, shared):
    def with_gradient(tile_hidden, tile_rows):
        losses, back, extras = jax.vjp(
            lambda h: per_row(h, tile_rows, shared), tile_hidden, has_aux=True
        )
        return losses, extras, back(jnp.ones_like(losses))[0]

    losses, extras, gradient = _run(with_gradient, tile, hidden, rows)
    return (losses, extras), gradient


def _backward(per_row, tile, gradient, cotangents):
    weight = cotangents[0][:, None]
    return jnp.where(weight != 0, gradient * weight, 0).astype(gradient.dtype), None, None


map_tiled_rows.defvjp(_forward, _backward)


def _run(function, tile, hidden, rows):
    count = hidden.shape[0]
    tiles = -(-count // tile)
    tile = -(-count // tiles)  # equal tiles, so that little is filled up

    def split(array):
        padding = ((0, tiles * tile - count), *((0, 0),) * (array.ndim - 1))
        return jnp.pad(array, padding).reshape(tiles, tile, *array.shape[1:])

    out = jax.lax.map(lambda args: function(*args), jax.tree.map(split, (hidden, rows)))
    return jax.tree.map(lambda array: array.reshape(tiles * tile, *array.shape[2:])[:count], out)
