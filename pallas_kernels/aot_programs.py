"""Programs that call single kernels, for `aot.compile_report`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.aot import Program
from pallas_kernels.registry import Problem, resolve_kernel, using


def make_attention_program(
    *, calls: list[dict[str, Any]], implementation: str | None = None
) -> Program:
    """Make a program that calls tree attention in several shapes, one after the other.

    Args:
      calls: one dict per call, with `rows`, `heads`, `kv_heads`, `head_dim`, `capacity`, and
        optionally `batch` (default: 1), `dtype` (bfloat16), `window` (None) and `causal` (False:
        rows of a tree under a mask).
      implementation: name of an implementation (default: the registry's choice).
    """

    def run(length, inputs):
        return [
            _call(*arrays, length, call.get("window"))
            for call, arrays in zip(calls, inputs, strict=True)
        ]

    def named(length, inputs):
        with using(implementation):
            return run(length, inputs)

    inputs = [_shapes(**call) for call in calls]
    return Program(jax.jit(named), (jax.ShapeDtypeStruct((), jnp.int32), inputs))


def _call(q, k, v, mask, cache_k, cache_v, length, window):
    length = jnp.broadcast_to(length, q.shape[:1])
    prefix = (cache_k, cache_v, 1, length, None)
    positions = jnp.broadcast_to(length[:, None], q.shape[:2])
    attend = resolve_kernel("tree_attention", Problem.of(q, k, v, prefix))
    return attend(q, k, v, positions, mask=mask, prefix=prefix, window=window)


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
) -> list[jax.ShapeDtypeStruct | None]:
    q, new = (batch, rows, heads, head_dim), (batch, rows, kv_heads, head_dim)
    cache = (2, batch, kv_heads, capacity, head_dim)
    mask = None if causal else jax.ShapeDtypeStruct((batch, rows, -(-rows // 32)), jnp.uint32)
    q, k, v, cache_k, cache_v = (
        jax.ShapeDtypeStruct(shape, dtype) for shape in (q, new, new, cache, cache)
    )
    return [q, k, v, mask, cache_k, cache_v]
