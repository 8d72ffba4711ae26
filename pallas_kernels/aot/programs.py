"""Programs that call single kernels, for `aot.compile_report`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.aot.lower import Program
from pallas_kernels.attention.packed_attention import by_sequence
from pallas_kernels.registry import Problem, resolve_kernel, using


def make_attention_program(
    *, calls: list[dict[str, Any]], implementation: str | None = None
) -> Program:
    """Make a program that calls tree attention in several shapes, one after the other.

    Args:
      calls: one dict per call, with `rows`, `heads`, `kv_heads`, `head_dim`, `capacity`, and
        optionally `batch` (default: 1), `dtype` (bfloat16), `window` (None) and `causal` (False:
        rows of a tree under a mask). With `packed`, they are packed rows of `batch` sequences,
        which have up to `packed` rows each; with `laid_out` too, they are laid out by sequence even
        where a kernel takes them packed.
      implementation: name of an implementation (default: the registry's choice).
    """

    def run(length, inputs):
        return [
            (_call_packed if call.get("packed") else _call)(*arrays, length, call)
            for call, arrays in zip(calls, inputs, strict=True)
        ]

    def named(length, inputs):
        with using(implementation):
            return run(length, inputs)

    inputs = [_shapes(**call) for call in calls]
    return Program(jax.jit(named), (jax.ShapeDtypeStruct((), jnp.int32), inputs))


def _call(q, k, v, mask, cache_k, cache_v, length, call):
    length = jnp.broadcast_to(length, q.shape[:1])
    prefix = (cache_k, cache_v, 1, length, None)
    positions = jnp.broadcast_to(length[:, None], q.shape[:2])
    attend = resolve_kernel("tree_attention", Problem.of(q, k, v, prefix))
    return attend(q, k, v, positions, mask=mask, prefix=prefix, window=call.get("window"))


def _call_packed(q, k, v, mask, cache_k, cache_v, packing, length, call):
    length = jnp.broadcast_to(length, cache_k.shape[1:2])
    prefix = (cache_k, cache_v, 1, length, None)
    positions = length[packing[0]][None]
    attend = resolve_kernel("packed_attention", Problem.of(q, k, v, prefix))
    if call.get("laid_out"):
        attend = by_sequence
    return attend(q, k, v, positions, mask, prefix, packing, call.get("window"))


def _shapes(
    *,
    rows,
    heads,
    kv_heads,
    head_dim,
    capacity,
    batch=1,
    dtype="bfloat16",
    window=None,
    causal=False,
    packed=None,
    laid_out=False,
) -> list:
    sequences, width = (1, packed) if packed else (batch, rows)
    q, new = (sequences, rows, heads, head_dim), (sequences, rows, kv_heads, head_dim)
    cache = (2, batch, kv_heads, capacity, head_dim)
    mask = None if causal else jax.ShapeDtypeStruct((batch, width, -(-width // 32)), jnp.uint32)
    q, k, v, cache_k, cache_v = (
        jax.ShapeDtypeStruct(shape, dtype) for shape in (q, new, new, cache, cache)
    )
    numbers = [(rows,), (rows,), (batch, width), (batch,)] if packed else []
    packing = tuple(jax.ShapeDtypeStruct(shape, jnp.int32) for shape in numbers)
    return [q, k, v, mask, cache_k, cache_v, *([packing] if packed else [])]
