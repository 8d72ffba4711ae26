"""A product of few rows by weights of four bits: one Pallas kernel with Triton lowering.

XLA writes such weights in the rows' dtype first, four times the bytes that the product then reads.
Here a program reads a block of outputs as it is stored, makes numbers of the codes in registers,
and multiplies them by the rows; a group's sums are scaled once. Codes less zero points are small
integers, which every dtype of rows holds exactly.

A group of inputs lies in half as many rows of bytes: the first half of its inputs in the low bits,
the second half in the high ones. So no program has to interleave numbers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from pallas_kernels import tuning, versions
from pallas_kernels.device import current_device
from pallas_kernels.registry import find_triton

_WARPS, _STAGES = 4, 4
_OUTPUTS = 64  # outputs per program
_BYTES = 64  # rows of bytes per step
LEAST_BYTES = 16  # Triton's products have as many inputs or more
MOST_ROWS = 64
_MOST_PARTS, _PROGRAMS_PER_CORE = 8, 1.5


def find_kernel(dtype, rows: int, group: int) -> Callable | None:
    """Return `multiply` for so many rows of `dtype` and groups of so many inputs, see
    `registry.find_triton`; None if XLA is to compute it.
    """
    known = jnp.dtype(dtype).name in tuning.DTYPES
    return find_triton(multiply, known and rows <= MOST_ROWS and group >= 2 * LEAST_BYTES)


def multiply(
    x: jax.Array, packed: jax.Array, scales: jax.Array, *, interpret: bool = False
) -> jax.Array:
    """Multiply rows by weights of four bits.

    Args:
      x: [R, in].
      packed: uint8 [in / 2, out], see the module.
      scales: [2, G, out], scales and zero points of integers; [1, G, out], scales of FP4 numbers.
      interpret: run in Pallas' interpreter.

    Returns:
      [R, out] in x's dtype.
    """
    versions.triton_params(_WARPS, _STAGES)  # silences its warning where the call is traced already
    return _call(x, packed, scales, interpret=interpret)


@functools.partial(jax.jit, static_argnames="interpret")
def _call(x, packed, scales, *, interpret):
    rows, groups, outputs = x.shape[0], scales.shape[1], packed.shape[1]
    half = packed.shape[0] // groups
    width = min(_OUTPUTS, _power_of_two(outputs))
    parts = _count_parts(-(-outputs // width), groups)
    body = functools.partial(
        _kernel,
        rows=rows,
        tile=max(16, _power_of_two(rows)),
        width=width,
        half=half,
        step=choose_step(half),
        groups=groups,
        per_part=-(-groups // parts),
    )
    sums = pl.pallas_call(
        body,
        grid=(-(-outputs // width), parts),
        out_shape=jax.ShapeDtypeStruct((parts, rows, outputs), jnp.float32),
        compiler_params=versions.triton_params(_WARPS, _STAGES),
        interpret=interpret,
        name="four_bits",
    )(x, packed, scales)
    return sums.sum(0).astype(x.dtype)


def _count_parts(blocks: int, groups: int) -> int:
    """Choose into how many parts the groups are split, so that every multiprocessor has work."""
    wanted = _PROGRAMS_PER_CORE * tuning.count_cores(current_device()) / blocks
    return max(1, min(_MOST_PARTS, groups, round(wanted)))


def _power_of_two(least: int) -> int:
    return 1 << (least - 1).bit_length()


def _kernel(x, packed, scales, out, *, rows, tile, width, half, step, groups, per_part):
    """Compute a block of outputs of all rows over one part of the groups."""
    block, part = pl.program_id(0), pl.program_id(1)
    column = block * width + jnp.arange(width, dtype=jnp.int32)
    row = jnp.arange(tile, dtype=jnp.int32)
    live, inside = row < rows, column < packed.shape[1]
    first = part * per_part
    total = sum_groups(
        lambda at, there: _load(x, (row[:, None], at[None, :]), live[:, None] & there[None, :]),
        lambda at, there: _load(
            packed, (at[:, None], column[None, :]), there[:, None] & inside[None, :]
        ),
        lambda which, group: _load(scales, (which, group, column), inside),
        (first, jnp.minimum(first + per_part, groups)),
        half=half,
        step=step,
        shape=(tile, width),
        fp4=scales.shape[0] == 1,
    )
    mask = live[:, None] & inside[None, :]
    at = tuple(jnp.broadcast_to(index, mask.shape) for index in (part, row[:, None], column))
    triton.store(out.at[at], total, mask=mask)


def sum_groups(
    load_rows: Callable[[jax.Array, jax.Array], jax.Array],
    load_packed: Callable[[jax.Array, jax.Array], jax.Array],
    load_scale: Callable[[int, jax.Array], jax.Array],
    groups: tuple[jax.Array, jax.Array],
    *,
    half: int,
    step: int,
    shape: tuple[int, int],
    fp4: bool,
) -> jax.Array:
    """Multiply rows by packed weights inside a kernel, group by group.

    Args:
      load_rows: (inputs int32 [step], whether to load each) -> [tile, step].
      load_packed: (rows of bytes int32 [step], whether to load each) -> uint8 [step, width].
      load_scale: (0 for scales and 1 for zero points, group) -> [width].
      groups: the first one, and the one after the last.
      half: rows of bytes of a group.
      step: rows of bytes that are multiplied at a time.
      shape: tile and width.
      fp4: whether codes are FP4 numbers, not integers.

    Returns:
      float32 [tile, width].
    """

    def add_group(group, total):
        zero = None if fp4 else load_scale(1, group).astype(jnp.int32)[None, :]

        def add_step(i, sums):
            at = i * step + jnp.arange(step, dtype=jnp.int32)
            there = at < half
            stored = load_packed(group * half + at, there).astype(jnp.int32)
            for side, codes in enumerate((stored & 15, stored >> 4)):
                numbers = _fp4(codes) if fp4 else codes - zero
                sums += _dot(load_rows((2 * group + side) * half + at, there), numbers)
            return sums

        steps, nothing = jnp.int32(-(-half // step)), jnp.zeros(shape, jnp.float32)
        sums = lax.fori_loop(jnp.int32(0), steps, add_step, nothing)
        return total + sums * load_scale(0, group).astype(jnp.float32)[None, :]

    return lax.fori_loop(*groups, add_group, jnp.zeros(shape, jnp.float32))


def choose_step(half: int) -> int:
    """Choose how many rows of bytes of a group are multiplied at a time."""
    return min(_BYTES, _power_of_two(half))


def _fp4(codes: jax.Array) -> jax.Array:
    """Return twice the FP4 numbers of codes, which are integers."""
    exponent, fraction = (codes >> 1) & 3, codes & 1
    twice = jnp.where(exponent == 0, fraction, (2 + fraction) << jnp.maximum(exponent - 1, 0))
    return jnp.where(codes >= 8, -twice, twice)


def _load(ref, at, mask) -> jax.Array:
    at = tuple(jnp.broadcast_to(index, mask.shape) for index in at)
    return triton.load(ref.at[at], mask=mask, other=0)


def _dot(a: jax.Array, b: jax.Array) -> jax.Array:
    """Multiply in a's dtype, summed in float32, without rounding to TF32."""
    precision = lax.Precision.HIGHEST if a.dtype == jnp.float32 else None
    return lax.dot_general(
        a,
        b.astype(a.dtype),
        (((1,), (0,)), ((), ())),
        precision=precision,
        preferred_element_type=jnp.float32,
    )
