"""A mixture of gated experts as two Pallas kernels with Triton lowering.

(row, choice) pairs are sorted by expert. A program takes one expert and a block of its outputs, and
goes through the expert's pairs, so each used expert's weights are read once, where they lie; the
others are not read. `jax.lax.ragged_dot` multiplies every row by every expert on GPUs.
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
from pallas_kernels.four_bits import LEAST_BYTES, choose_step, sum_groups
from pallas_kernels.reference import Gate, gate_units
from pallas_kernels.registry import find_triton

_WARPS, _STAGES = 4, 4
_OUTPUTS = 64  # outputs of an expert per program
SILU = Gate()
_INPUTS = {1: 128, 2: 64, 4: 32}  # inputs per step, by the bytes of a weight


def find_kernel(
    dtype, weight_dtype, gate: Gate = SILU, partial: bool = False, group: int = 0
) -> Callable | None:
    """Return the kernel for rows of `dtype` and experts of `weight_dtype`, see
    `registry.find_triton`; for `gate` and `partial` see `mix_experts`.

    Args:
      group: the inputs of a group of weights of four bits, the smaller one of both kernels'.
    """
    # Triton converts to fp8 from compute capability 8.9 on.
    fp8 = jnp.dtype(weight_dtype).name.startswith("float8")
    too_old = fp8 and (current_device().compute_capability or (0, 0)) < (8, 9)
    short = jnp.dtype(weight_dtype) == jnp.uint8 and group < 2 * LEAST_BYTES
    known = jnp.dtype(dtype).name in tuning.DTYPES and not (too_old or short)
    return find_triton(functools.partial(mix_experts, gate=gate, partial=partial), known)


def mix_experts(
    rows: jax.Array,
    expert: jax.Array,
    weight: jax.Array,
    gate_up: jax.Array,
    down: jax.Array,
    gate_up_scale: jax.Array | None = None,
    down_scale: jax.Array | None = None,
    gate_up_bias: jax.Array | None = None,
    down_bias: jax.Array | None = None,
    *,
    gate: Gate = SILU,
    partial: bool = False,
    interpret: bool = False,
) -> jax.Array:
    """Compute the weighted sum of each row's chosen experts.

    Args:
      rows: [R, E].
      expert: int32 [R, k], chosen experts.
      weight: [R, k] in the rows' dtype.
      gate_up: [X, E, 2F].
      down: [X, F, E].
      gate_up_scale, down_scale: [X, 2F] and [X, E] of quantised weights; [X, 2, G, …] scales and
        zero points of integers of four bits, or [X, 1, G, …] of FP4 numbers. These lie as in
        `pallas_kernels.four_bits`, uint8 with half as many inputs.
      gate_up_bias, down_bias: [X, 2F] and [X, E], or None.
      gate: how units are gated.
      partial: whether some choices are X: these count nothing.
      interpret: run in Pallas' interpreter.

    Returns:
      [R, E].
    """
    versions.triton_params(_WARPS, _STAGES)  # silences its warning where the call is traced already
    kernels = (gate_up, gate_up_scale, gate_up_bias), (down, down_scale, down_bias)
    return _mix(rows, expert, weight, *kernels, gate=gate, partial=partial, interpret=interpret)


@functools.partial(jax.jit, static_argnames=("gate", "partial", "interpret"))
def _mix(rows, expert, weight, gate_up, down, *, gate: Gate, partial: bool, interpret: bool):
    pairs, first = sort_pairs(expert, gate_up[0].shape[0])
    call = functools.partial(_multiply, pairs, first, choices=expert.shape[1], interpret=interpret)
    hidden = call(rows, *gate_up, gate=gate)
    out = call(hidden, *down, gate=None).reshape(*expert.shape, -1)
    if partial:  # nothing was written for these pairs, so their memory holds anything
        out = jnp.where((expert < gate_up[0].shape[0])[..., None], out, 0)
    return (out * weight[..., None]).sum(axis=1)


def sort_pairs(expert: jax.Array, num_experts: int) -> tuple[jax.Array, jax.Array]:
    """Sort (row, choice) pairs by expert; pair p is choice p % k of row p // k.

    Args:
      expert: int32 [R, k].
      num_experts: X.

    Returns:
      The pairs int32 [R * k] in order, and the first place of each expert's, int32 [X + 1].
    """
    flat = expert.reshape(-1)
    pair = jnp.arange(flat.size, dtype=jnp.int32)
    # Comparing all with all takes one short kernel; a sort is a chain of them.
    before = (flat < flat[:, None]) | ((flat == flat[:, None]) & (pair < pair[:, None]))
    place = before.sum(1, dtype=jnp.int32)
    first = (flat < jnp.arange(num_experts + 1)[:, None]).sum(1, dtype=jnp.int32)
    return jnp.zeros_like(pair).at[place].set(pair, unique_indices=True), first


def _multiply(
    pairs, first, x, kernel, scale, bias, *, choices: int, gate: Gate | None, interpret: bool
):
    """Multiply the inputs of all pairs by their experts' matrices [X, in, out].

    With a `gate`, `x` [R, E] are rows, and the result is gated units in the order of `pairs`.
    Without, `x` [R * k, F] are in that order, and the result is in the order of the pairs' numbers.
    """
    experts, inputs, outputs = kernel.shape
    step = min(_INPUTS[kernel.dtype.itemsize], _power_of_two(inputs))
    if kernel.dtype == jnp.uint8:
        step = choose_step(inputs // scale.shape[2])
    outputs = outputs if gate is None else outputs // 2
    width = min(_OUTPUTS, _power_of_two(outputs))
    operands = {"pairs": pairs, "first": first, "x": x, "kernel": kernel}
    further = {"scale": scale, "bias": bias}
    operands |= {name: array for name, array in further.items() if array is not None}
    body = functools.partial(
        _kernel,
        names=tuple(operands),
        tile=max(16, min(_power_of_two(-(-pairs.size // experts)), 64)),
        step=step,
        width=width,
        outputs=outputs,
        choices=choices,
        gate=gate,
    )
    return pl.pallas_call(
        body,
        grid=(-(-outputs // width), experts),
        out_shape=jax.ShapeDtypeStruct((pairs.size, outputs), x.dtype),
        compiler_params=versions.triton_params(_WARPS, _STAGES),
        interpret=interpret,
        name="experts_down" if gate is None else "experts_gate_up",
    )(*operands.values())


def _power_of_two(least: int) -> int:
    return 1 << (least - 1).bit_length()


def _kernel(*refs, names, tile, step, width, outputs, choices, gate: Gate | None):
    """Compute a block of outputs for all pairs of one expert."""
    ref, out = dict(zip(names, refs, strict=False)), refs[-1]
    block, expert = pl.program_id(0), pl.program_id(1)
    start, stop = (triton.load(ref["first"].at[expert + i]) for i in (0, 1))
    column = block * width + jnp.arange(width, dtype=jnp.int32)
    parts = (0,) if gate is None else (0, outputs)

    def multiply(i, _):
        place = start + i * tile + jnp.arange(tile, dtype=jnp.int32)
        live = place < stop
        # Places that are not live keep an index out of range: the interpreter would otherwise
        # overwrite a live row with its old value.
        pair = triton.load(ref["pairs"].at[place], mask=live, other=out.shape[0])
        place = jnp.where(live, place, out.shape[0])
        row = place if gate is None else pair // choices
        packed = ref["kernel"].dtype == jnp.uint8
        add = _sums_of_groups if packed else _sums
        sums = add(ref, expert, row, live, column, parts, step, outputs)
        if "scale" in ref and not packed:
            sums = [
                total * _load(ref["scale"], (expert, column + part), column < outputs)[None, :]
                for total, part in zip(sums, parts, strict=True)
            ]
        if "bias" in ref:
            sums = [
                total + _load(ref["bias"], (expert, column + part), column < outputs)[None, :]
                for total, part in zip(sums, parts, strict=True)
            ]
        sums = [total.astype(out.dtype).astype(jnp.float32) for total in sums]
        result = sums[0] if gate is None else gate_units(*sums, gate)
        _store(out, pair if gate is None else place, column, result, live, outputs)

    lax.fori_loop(jnp.int32(0), pl.cdiv(stop - start, jnp.int32(tile)), multiply, None)


def _sums(ref, expert, row, live, column, parts, step: int, outputs: int) -> list[jax.Array]:
    """Multiply rows `row` of x by the expert's columns `column`, once for each of `parts`.

    Returns:
      float32 [tile, width] for each.
    """
    x, kernel = ref["x"], ref["kernel"]
    inputs = kernel.shape[1]

    def add(j, sums):
        at = j * step + jnp.arange(step, dtype=jnp.int32)
        left = _load(x, (row[:, None], at[None, :]), live[:, None] & (at < inputs)[None, :])
        inside = (at < inputs)[:, None] & (column < outputs)[None, :]
        return [
            total + _dot(left, _load(kernel, (expert, at[:, None], column[None, :] + part), inside))
            for total, part in zip(sums, parts, strict=True)
        ]

    zero = jnp.zeros((row.shape[0], column.shape[0]), jnp.float32)
    steps = jnp.int32(-(-inputs // step))
    return lax.fori_loop(jnp.int32(0), steps, add, [zero for _ in parts])


def _sums_of_groups(ref, expert, row, live, column, parts, step, outputs) -> list[jax.Array]:
    """Multiply as `_sums`, by weights of four bits."""
    x, kernel, scale = ref["x"], ref["kernel"], ref["scale"]
    groups, inside = scale.shape[2], column < outputs

    def add(part: int) -> jax.Array:
        return sum_groups(
            lambda at, there: _load(x, (row[:, None], at[None, :]), live[:, None] & there[None, :]),
            lambda at, there: _load(
                kernel,
                (expert, at[:, None], column[None, :] + part),
                there[:, None] & inside[None, :],
            ),
            lambda which, group: _load(scale, (expert, which, group, column + part), inside),
            (jnp.int32(0), jnp.int32(groups)),
            half=kernel.shape[1] // groups,
            step=step,
            shape=(row.shape[0], column.shape[0]),
            fp4=scale.shape[1] == 1,
        )

    return [add(part) for part in parts]


def _load(ref, at, mask) -> jax.Array:
    at = tuple(jnp.broadcast_to(index, mask.shape) for index in at)
    return triton.load(ref.at[at], mask=mask, other=0)


def _store(ref, row, column, value, live, outputs: int) -> None:
    mask = live[:, None] & (column < outputs)[None, :]
    at = tuple(jnp.broadcast_to(index, mask.shape) for index in (row[:, None], column[None, :]))
    triton.store(ref.at[at], value.astype(ref.dtype), mask=mask)


def _dot(a, b) -> jax.Array:
    """Multiply in a's dtype, summed in float32, without rounding to TF32."""
    precision = lax.Precision.HIGHEST if a.dtype == jnp.float32 else None
    return lax.dot_general(
        a,
        b.astype(a.dtype),
        (((1,), (0,)), ((), ())),
        precision=precision,
        preferred_element_type=jnp.float32,
    )
