"""Losses over the vocabulary, a tile of rows at a time, so that memory is bounded.

A row's loss depends only on its own inputs, and the output projection is frozen. So each row's
gradient is computed together with its loss, while the tile's logits exist, and kept: [N, E] instead
of [N, V], and nothing is computed twice. Where weights are trained that all rows read, the rows are
summed up at once, and the gradient of these weights adds up over the tiles.
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
    out = jax.lax.map(lambda args: function(*args), _split((hidden, rows), count, tile))
    return _join(out, count)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def sum_tiled_rows(per_row: Callable, tile: int, trained, inputs, rows, shared):
    """Sum the losses of N rows, `tile` of them at a time.

    Differentiable with respect to `trained` and `inputs`.

    Args:
      per_row: (trained, inputs [t, ...], rows [t, ...], shared) -> (losses float32 [t], extras:
        pytree with t first). Rows of zeros, which fill up the last tile, must have the loss 0.
      tile: maximum rows at a time, static.
      trained: pytree of float arrays that every row reads.
      inputs: pytree of float arrays with N first.
      rows: pytree of arrays with N first.
      shared: pytree that every tile reads.

    Returns:
      (sum of the losses float32 [], extras with N first).
    """
    count = _count(rows)

    def one(total, part):
        losses, extras = per_row(trained, *part, shared)
        return total + losses.sum(), extras

    total, extras = jax.lax.scan(one, jnp.float32(0), _split((inputs, rows), count, tile))
    return total, _join(extras, count)


def _forward_sum(per_row, tile, trained, inputs, rows, shared):
    count = _count(rows)

    def one(sums, part):
        def summed(trained, tile_inputs):
            losses, extras = per_row(trained, tile_inputs, part[1], shared)
            return losses.sum(), extras

        loss, back, extras = jax.vjp(summed, trained, part[0], has_aux=True)
        slope, gradient = back(jnp.ones_like(loss))
        return jax.tree.map(jnp.add, sums, (loss, slope)), (extras, gradient)

    start = (jnp.float32(0), jax.tree.map(jnp.zeros_like, trained))
    (total, slope), found = jax.lax.scan(one, start, _split((inputs, rows), count, tile))
    extras, gradient = _join(found, count)
    return (total, extras), (slope, gradient)


def _backward_sum(per_row, tile, gradients, cotangents):
    def scale(leaf):
        return (leaf * cotangents[0]).astype(leaf.dtype)

    return *jax.tree.map(scale, gradients), None, None


sum_tiled_rows.defvjp(_forward_sum, _backward_sum)


def _count(rows) -> int:
    return jax.tree.leaves(rows)[0].shape[0]


def _split(columns, count: int, tile: int):
    """Cut pytrees of [N, ...] into equal tiles [tiles, t, ...], the last one filled with zeros."""
    tiles = -(-count // tile)
    tile = -(-count // tiles)  # equal tiles, so that little is filled up

    def split(array):
        padding = ((0, tiles * tile - count), *((0, 0),) * (array.ndim - 1))
        return jnp.pad(array, padding).reshape(tiles, tile, *array.shape[1:])

    return jax.tree.map(split, columns)


def _join(tiled, count: int):
    """Undo `_split`."""
    return jax.tree.map(lambda array: array.reshape(-1, *array.shape[2:])[:count], tiled)
