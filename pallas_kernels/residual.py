"""Add a product to the residual stream and normalise the sum: one Pallas kernel with Triton
lowering.

A product of few rows by a matrix fills a GPU only if its inputs are split among blocks. XLA splits
them by itself and adds the parts up in a kernel of its own, and normalises in another one. Here the
product leaves its parts, and the kernel that needs the sum adds them up as it reads them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from pallas_kernels import reference, tuning, versions
from pallas_kernels.caution import TRITON_PRODUCTS, choose_cautious
from pallas_kernels.device import Device, current_device
from pallas_kernels.reference import Norm
from pallas_kernels.registry import find_triton

_WARPS, _STAGES = 8, 1
# XLA's products of few rows take blocks of about this size, and each part this many inputs or more:
# on an H100, 64 rows by [4096, 4096] took 18 us in parts of 1,024 inputs, 23 in parts of 512 and 21
# as a whole (benchmarks/results/2026-11/h100_products.json).
_BLOCK_ROWS, _BLOCK_OUTPUTS, _LEAST_INPUTS = 64, 128, 1024
_MOST_PARTS, _BLOCKS_PER_CORE = 8, 1.5


def find_kernel(dtype) -> Callable | None:
    """Return the kernel, with the arguments of `reference.add_normalize`, see
    `registry.find_triton`.
    """
    return find_triton(add_normalize, jnp.dtype(dtype).name in tuning.DTYPES)


def count_parts(rows: int, inputs: int, outputs: int, device: Device | None = None) -> int:
    """Choose into how many parts the inputs of a product are split; a power of two.

    One where cuBLAS multiplies, which splits inputs by itself.

    The parts give every multiprocessor about one and a half blocks of the product, as XLA's own
    rule does on an H100, unless they become short. Fewer would leave multiprocessors without a load
    in flight. Narrower blocks would not: each block reads all rows of its inputs, so at 64 rows
    blocks of 32 outputs read twice as many bytes of rows as of weights.

    Args:
      rows, inputs, outputs: of the product [rows, inputs] by [inputs, outputs].
      device: (default: that of programs traced now).
    """
    device = device or current_device()
    if TRITON_PRODUCTS in choose_cautious(device):
        return 1
    blocks = -(-rows // _BLOCK_ROWS) * -(-outputs // _BLOCK_OUTPUTS)
    wanted = _BLOCKS_PER_CORE * tuning.count_cores(device) / blocks
    parts = min(_MOST_PARTS, 1 << max(0, round(math.log2(wanted))))
    while inputs % parts or inputs // parts < _LEAST_INPUTS and parts > 1:
        parts //= 2
    return parts


def add_normalize(x, parts, scale, norm: Norm, *, interpret: bool = False):
    """Compute `reference.add_normalize`, which also gives the derivative."""
    # Silence the warning here too: the call below may be traced already.
    versions.triton_params(_WARPS, _STAGES)
    return _differentiable(x, parts, scale, norm, interpret)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _differentiable(x, parts, scale, norm, interpret):
    return _call(x, parts, scale, norm=norm, interpret=interpret)


def _forward(x, parts, scale, norm, interpret):
    return jax.vjp(lambda *arrays: reference.add_normalize(*arrays, norm), x, parts, scale)


_differentiable.defvjp(_forward, lambda norm, interpret, derivative, out: derivative(out))


@functools.partial(jax.jit, static_argnames=("norm", "interpret"))
def _call(x, parts, scale, *, norm, interpret):
    width = x.shape[-1]
    flat = x.reshape(-1, width)
    total, normed = pl.pallas_call(
        functools.partial(_kernel, norm=norm),
        grid=(flat.shape[0],),
        out_shape=[jax.ShapeDtypeStruct(flat.shape, x.dtype)] * 2,
        compiler_params=versions.triton_params(_WARPS, _STAGES),
        interpret=interpret,
        name="add_normalize",
    )(flat, parts.reshape(parts.shape[0], -1, width), scale)
    return total.reshape(x.shape), normed.reshape(x.shape)


def _kernel(x, parts, scale, total, normed, *, norm: Norm):
    """Handle one row."""
    row, width, dtype = pl.program_id(0), x.shape[1], x.dtype
    column = jnp.arange(1 << (width - 1).bit_length(), dtype=jnp.int32)
    live = column < width
    at = jnp.broadcast_to(row, column.shape), column
    # The product is rounded before it is added, as XLA rounds it.
    added = load_sum(parts, at, live).astype(dtype).astype(jnp.float32)
    new = (triton.load(x.at[at], mask=live, other=0).astype(jnp.float32) + added).astype(dtype)
    wide = new.astype(jnp.float32)
    factor = jax.lax.rsqrt(jnp.sum(wide * wide) / width + norm.eps)
    weight = triton.load(scale.at[column], mask=live, other=0)
    triton.store(total.at[at], new, mask=live)
    new = reference.rescale(wide * factor, weight, norm, dtype)
    triton.store(normed.at[at], new, mask=live)


def load_sum(parts, at: tuple[jax.Array, ...], live: jax.Array) -> jax.Array:
    """Load entries `at` of every part [S, ...] where `live`, and add them up in float32."""
    loaded = (
        triton.load(parts.at[jnp.full(live.shape, i, jnp.int32), *at], mask=live, other=0)
        for i in range(parts.shape[0])
    )
    return sum(one.astype(jnp.float32) for one in loaded)
