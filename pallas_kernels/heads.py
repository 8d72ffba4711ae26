"""Split projections into heads, normalise and rotate them: one Pallas kernel with Triton lowering.

For the few rows of a round, XLA makes five kernels of this: two norms, two rotations and a copy of
the values. Each does less than its launch costs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from pallas_kernels import reference, tuning, versions
from pallas_kernels.reference import Norm
from pallas_kernels.registry import find_triton
from pallas_kernels.residual import load_sum

_ROWS, _WARPS, _STAGES = 16, 2, 1  # rows per program


def find_kernel(dtype, head_dim: int) -> Callable | None:
    """Return the kernel, with the arguments of `reference.split_heads`, see `registry.find_triton`."""
    if head_dim not in tuning.HEAD_DIMS or jnp.dtype(dtype).name not in tuning.DTYPES:
        return None
    return find_triton(split_heads)


def split_heads(joined, table, scales, sizes, norm: Norm, dtype=None, *, interpret: bool = False):
    """Compute `reference.split_heads`, which also gives the derivative."""
    # Silence the warning here too: the call below may be traced already.
    versions.triton_params(_WARPS, _STAGES)
    how = sizes, norm, jnp.dtype(dtype or joined.dtype), interpret
    return _differentiable(joined, table, scales, how)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _differentiable(joined, table, scales, how):
    return _call(joined, table, scales, how=how)


def _forward(joined, table, scales, how):
    def value(*arrays):
        return reference.split_heads(*arrays, *how[:-1])

    return jax.vjp(value, joined, table, scales)


_differentiable.defvjp(_forward, lambda how, derivative, out: derivative(out))


@functools.partial(jax.jit, static_argnames=("how",))
def _call(joined, table, scales, *, how):
    sizes, norm, dtype, interpret = how
    heads, kv_heads, dim = sizes
    shape = joined.shape[1:3]
    rows = shape[0] * shape[1]
    flat = [
        joined.reshape(-1, rows, joined.shape[-1]),
        *(x.reshape(rows, x.shape[-1]) for x in table),
    ]
    outputs = [
        jax.ShapeDtypeStruct((rows, count, dim), dtype) for count in (heads, kv_heads, kv_heads)
    ]
    split = pl.pallas_call(
        functools.partial(_kernel, sizes=sizes, norm=norm),
        grid=(-(-rows // _ROWS), heads + 2 * kv_heads),
        out_shape=outputs,
        compiler_params=versions.triton_params(_WARPS, _STAGES),
        interpret=interpret,
        name="split_heads",
    )(*flat, *(scales or ()))
    return tuple(x.reshape(*shape, *x.shape[1:]) for x in split)


def _kernel(joined, cos, sin, *refs, sizes, norm: Norm):
    """Handle a block of rows of one head."""
    heads, kv_heads, dim = sizes
    norms, out = refs[:-3], refs[-3:]
    rows, head, dtype = joined.shape[1], pl.program_id(1), out[0].dtype
    # Rows beyond the last keep an index out of range: the interpreter would otherwise overwrite a
    # live row with its old value.
    row = pl.program_id(0) * _ROWS + jnp.arange(_ROWS, dtype=jnp.int32)
    half = jnp.arange(dim // 2, dtype=jnp.int32)
    halves = []
    for start in (0, dim // 2):
        at, live = _address(row, head * dim + start + half, rows)
        halves.append(load_sum(joined, at, live).astype(dtype))

    def rotated(which: int):
        new = _normalized(halves, norms[which], half, norm) if norms else halves
        a, b = (x.astype(jnp.float32) for x in new)
        c, s = (_load(each, row, half, rows) for each in (cos, sin))
        return a * c - b * s, b * c + a * s

    def write(target, place, halves):
        for start, x in zip((0, dim // 2), halves, strict=True):
            at, live = _address(row, start + half, rows)
            at = at[0], jnp.broadcast_to(place, live.shape), at[1]
            triton.store(target.at[at], x.astype(target.dtype), mask=live)

    @pl.when(head < heads)
    def _():
        write(out[0], head, rotated(0))

    @pl.when((head >= heads) & (head < heads + kv_heads))
    def _():
        write(out[1], head - heads, rotated(1))

    @pl.when(head >= heads + kv_heads)
    def _():
        write(out[2], head - heads - kv_heads, halves)


def _normalized(halves, scale, half, norm: Norm):
    """Compute `reference.normalize` of rows given in halves."""
    dim, dtype = 2 * half.shape[0], halves[0].dtype
    wide = [x.astype(jnp.float32) for x in halves]
    mean = sum(jnp.sum(x * x, axis=1) for x in wide) / dim
    factor = jax.lax.rsqrt(mean + norm.eps)[:, None]
    scales = [triton.load(scale.at[start + half]) for start in (0, dim // 2)]
    return [
        reference.rescale(x * factor, s[None, :], norm, dtype)
        for s, x in zip(scales, wide, strict=True)
    ]


def _address(row, column, rows: int):
    shape = row.shape[0], column.shape[0]
    at = tuple(jnp.broadcast_to(index, shape) for index in (row[:, None], column[None, :]))
    return at, at[0] < rows


def _load(ref, row, column, rows: int) -> jax.Array:
    at, live = _address(row, column, rows)
    return triton.load(ref.at[at], mask=live, other=0)
