"""Time tree attention alone: the implementation that the registry picks and the XLA reference."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.bench.latency import floors
from jaxspec.bench.latency.pieces import make_random_cache
from jaxspec.core.config import TransformerConfig
from jaxspec.core.runtime.clock import time_call
from jaxspec.core.tree import chain_words
from jaxspec.targets.attention import attend
from pallas_kernels import registry

REFERENCE = "reference"


def measure_attention(
    config: TransformerConfig,
    dtype,
    *,
    batch: int,
    rows: int,
    context: int,
    cache_bytes: float | None,
    repeats: int,
    times: int,
) -> dict[str, Any]:
    """Time both implementations in turn, in milliseconds per layer, at a model's shapes.

    `kernel_ms` is None if the registry picks the reference.

    Calls go from layer to layer of a stacked cache, over enough layers (16 at most) to exceed the
    last-level cache twice.

    Args:
      times: passes over the layers in one program.

    Returns:
      A flat record: rows, context, layers, kernel (name of the implementation), {reference,
      kernel}_{ms, quartiles}, ratio, bytes, flops.
    """
    # One group of layers as the fields of the model say.
    config = dataclasses.replace(config, layers=())
    per_layer = batch * context * floors.count_kv_bytes(config, dtype) / config.num_layers
    layers = min(config.num_layers, 16, max(1, math.ceil(2 * (cache_bytes or 64e6) / per_layer)))
    shape = (batch, rows, config.num_heads, config.head_dim)
    heads = (*shape[:2], config.num_kv_heads, shape[3])
    q, k, v = (
        jax.random.normal(jax.random.key(i), size, dtype)
        for i, size in enumerate((shape, heads, heads))
    )
    stacked = make_random_cache(config.take_layers(layers), batch, context, dtype)
    mask = jnp.broadcast_to(chain_words(rows), (batch, rows, -(-rows // 32)))
    given = (q, k, v, *stacked.k, *stacked.v, mask, jnp.full(batch, context, jnp.int32))
    chosen = pick_implementation(config, dtype, batch=batch, rows=rows, capacity=context)
    programs = {}
    for name in dict.fromkeys((REFERENCE, chosen)):
        with registry.using(name):
            programs[name] = jax.jit(_passes(layers, times)).lower(*given).compile()
    samples = _interleaved(programs, given, repeats, layers * times)
    record: dict[str, Any] = {"rows": rows, "context": context, "layers": layers, "kernel": chosen}
    for key, name in (("reference", REFERENCE), ("kernel", chosen)):
        empty = key == "kernel" and chosen == REFERENCE
        record[f"{key}_ms"] = None if empty else float(np.median(samples[name]))
        record[f"{key}_quartiles"] = (
            None if empty else np.percentile(samples[name], [25, 75]).tolist()
        )
    record["ratio"] = record["reference_ms"] / record["kernel_ms"] if record["kernel_ms"] else None
    work = floors.count_attention(config, dtype, batch=batch, rows=rows, context=context)
    return record | {"bytes": work.bytes, "flops": work.flops}


def pick_implementation(
    config: TransformerConfig, dtype, *, batch: int, rows: int, capacity: int
) -> str:
    """Name the implementation that the registry picks to verify these shapes.

    The reference's time grows with the capacity of the cache, a kernel's with its length.
    """
    shape = (batch, rows, config.num_heads, config.num_kv_heads, config.head_dim)
    return registry.explain(
        "tree_attention", registry.Problem(*shape, frozenset({jnp.dtype(dtype).name}), capacity)
    ).name


def _passes(layers: int, times: int):
    """Make a program that runs attention over all layers `times` times; each result is the next
    query.
    """

    def run(q, k, v, cache_k, cache_v, mask, length):
        def body(_, q):
            now = length + (q[:, 0, 0, 0] > 1e30)
            positions = now[:, None] + jnp.arange(q.shape[1])
            for layer in range(layers):
                q = attend(
                    q, k, v, positions, mask=mask, prefix=(cache_k, cache_v, layer, now, None)
                )
            return q

        return jax.lax.fori_loop(0, times, body, q)

    return run


def _interleaved(
    programs: dict[str, Any], given: tuple, repeats: int, calls: int
) -> dict[str, list[float]]:
    """Time programs in turn: milliseconds per call; the first sample of each is discarded."""
    samples: dict[str, list[float]] = {name: [] for name in programs}
    for repeat in range(repeats + 1):
        for name, program in programs.items():
            _, seconds = time_call(program, *given)
            if repeat:
                samples[name].append(1e3 * seconds / calls)
    return samples
