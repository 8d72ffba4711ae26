"""Merge attention over parts of the keys by their maxima and sums of weights (log-sum-exp)."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from pallas_kernels import versions
from pallas_kernels.tuning import Tiles


def merge(total, top, weight, q, kv_heads: int, cut: Tiles, interpret: bool) -> jax.Array:
    """Merge all parts.

    Args:
      total: float32 [parts, B * K, M, D], weighted sums of values; unset where `weight` is 0. Row
        t * H / K + g of M is row t of q and head g of those that share the kv head.
      top: float32 [parts, B * K, M], base-2 maxima of the scores.
      weight: float32 [parts, B * K, M], sums of 2 ** (score - top).
      q: [B, T, H, D], gives shape and dtype of the result.
      kv_heads: K.
      cut: block sizes.
      interpret: run in Pallas' interpreter.

    Returns:
      [B, T, H, D]; zeros for rows without weight in any part.
    """
    rows, heads, dim = q.shape[1:]
    group, parts = heads // kv_heads, total.shape[0]
    padded = 1 << (parts - 1).bit_length()
    sums = pl.BlockSpec((padded, None, cut.merge_rows), lambda block, z: (0, z, block))
    return pl.pallas_call(
        functools.partial(_kernel, parts=parts, rows=rows, group=group, kv_heads=kv_heads),
        grid=(-(-rows * group // cut.merge_rows), total.shape[1]),
        in_specs=[
            pl.BlockSpec((padded, None, cut.merge_rows, dim), lambda block, z: (0, z, block, 0)),
            sums,
            sums,
        ],
        out_specs=pl.BlockSpec((None, rows, heads, dim), lambda block, z: (z // kv_heads, 0, 0, 0)),
        out_shape=jax.ShapeDtypeStruct(q.shape, q.dtype),
        compiler_params=versions.triton_params(4, 1),
        interpret=interpret,
        name="tree_attention_merge",
    )(total, top, weight)


def _kernel(
    total_ref, top_ref, weight_ref, out_ref, *, parts: int, rows: int, group: int, kv_heads: int
):
    padded, count = top_ref.shape
    part = jnp.arange(padded, dtype=jnp.int32)[:, None]
    row = pl.program_id(0) * count + jnp.arange(count, dtype=jnp.int32)
    weight = triton.load(
        weight_ref.at[:, :], mask=jnp.broadcast_to(part < parts, (padded, count)), other=0.0
    )
    used = weight != 0  # true for NaN
    tops = triton.load(top_ref.at[:, :], mask=used, other=-1e30)
    share = jnp.where(used, jnp.exp2(tops - jnp.max(tops, axis=0)[None, :]), 0.0)
    sums = triton.load(
        total_ref.at[:, :, :], mask=jnp.broadcast_to(used[:, :, None], total_ref.shape), other=0.0
    )
    total = jnp.sum(sums * share[:, :, None], axis=0)
    weight = jnp.sum(weight * share, axis=0)
    store_rows(
        out_ref,
        total / jnp.where(weight != 0, weight, 1.0)[:, None],
        row,
        pl.program_id(1) % kv_heads,
        rows,
        group,
    )


def load_rows(ref, row, head, rows: int, group: int):
    """Load rows `row` int32 [M] of kv head `head` from `ref` [T, H, D], as [M, D].

    Row t * group + g is row t and head g of those that share the kv head.
    """
    at, live = _address(ref, row, head, rows, group)
    return triton.load(ref.at[at], mask=live, other=0.0)


def store_rows(ref, value, row, head, rows: int, group: int) -> None:
    """Write `value` [M, D] to the place that `load_rows` reads."""
    at, live = _address(ref, row, head, rows, group)
    triton.store(ref.at[at], value.astype(ref.dtype), mask=live)


def _address(ref, row, head, rows: int, group: int):
    # Index all axes with arrays: the interpreter cannot mix arrays and slices. Rows beyond the last
    # are masked and must keep an index out of range. Otherwise the interpreter would overwrite a
    # live row with its old value.
    shape = (row.shape[0], ref.shape[-1])
    column = jnp.arange(shape[1], dtype=jnp.int32)[None, :]
    node, query_head = (row // group)[:, None], (head * group + row % group)[:, None]
    at = tuple(jnp.broadcast_to(index, shape) for index in (node, query_head, column))
    return at, jnp.broadcast_to((row < rows * group)[:, None], shape)
