"""Time autoregressive steps by the capacity of the cache, against a step without cached tokens."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.bench.architectures import random_params
from jaxspec.bench.latency.attention_alone import REFERENCE, pick_implementation
from jaxspec.bench.latency.latency_options import LatencyOptions, resolve_options
from jaxspec.bench.latency.pieces import make_random_cache
from jaxspec.bench.report.table import tabulate
from jaxspec.core.runtime.clock import order_turns, time_call
from jaxspec.targets.transformer import Transformer
from pallas_kernels import registry

# The step without a cache: its products, norms and the attention of the new token to itself.
PRODUCTS = "products"


def measure_capacities(
    settings: LatencyOptions,
    capacities: Sequence[int],
    progress: Callable[[str], None] = lambda line: None,
) -> list[dict[str, Any]]:
    """Time steps of one row per sequence with random weights, all programs of a capacity in turn.

    Args:
      settings: `contexts` has one number, the cached tokens of every sequence.
      capacities: rows of the cache.

    Returns:
      A flat record per capacity: capacity, context, batch, kernel (name of the implementation that
      the registry picks), products_ms, {kernel, reference}_ms (medians; kernel_ms is that of the
      reference if the registry picks it).

    Raises:
      ValueError: as `resolve_options`; or there are several contexts, or one that a capacity does
        not hold.
    """
    settings, spec = resolve_options(settings)
    if len(settings.contexts) != 1:
        raise ValueError(f"{len(settings.contexts)} contexts: give one of them with capacities")
    (context,), dtype = settings.contexts, jnp.dtype(settings.dtype)
    if min(capacities) <= context:
        raise ValueError(f"capacity {min(capacities)}: give more than the context, {context}")
    records = []
    with jax.default_matmul_precision("highest" if dtype == jnp.float32 else None):
        weights = random_params(spec, dtype).target
        for capacity in capacities:
            progress(f"capacity {capacity}")
            shape = {"batch": settings.batch, "rows": 1, "capacity": capacity}
            name = pick_implementation(spec.target, dtype, **shape)
            cache = make_random_cache(spec.target, settings.batch, capacity, dtype)
            cache = cache.replace(length=jnp.full(settings.batch, context, jnp.int32))
            programs = {PRODUCTS: _compile(spec.target, weights, cache, None)}
            for each in dict.fromkeys((name, REFERENCE)):
                programs[each] = _compile(spec.target, weights, cache, each)
            found = _in_turn(programs, (weights, cache), settings.repeats)
            records.append(
                {"capacity": capacity, "context": context, "batch": settings.batch, "kernel": name}
                | {"products_ms": found[PRODUCTS], "kernel_ms": found[name]}
                | {"reference_ms": found[REFERENCE]}
            )
    return records


def render_capacities(records: Sequence[dict[str, Any]]) -> str:
    """Render the records as a table; `x products` is the time of a step over its products'."""
    titles = ("capacity", "context", "batch", "kernel", "products ms", "step ms", "x products")
    rows = [
        (
            *(one[key] for key in ("capacity", "context", "batch", "kernel")),
            f"{one['products_ms']:.1f}",
            f"{one['kernel_ms']:.1f}",
            f"{one['kernel_ms'] / one['products_ms']:.2f}",
            f"{one['reference_ms']:.1f}",
            f"{one['reference_ms'] / one['products_ms']:.2f}",
        )
        for one in records
    ]
    return tabulate((*titles, "reference step ms", "x products"), rows).to_text()


def _compile(config, weights, cache, name: str | None):
    """Compile a step with the implementation `name`; without a cache if that is None."""
    step = jax.jit(functools.partial(_step, config, name is not None))
    with registry.using(name):
        return step.lower(weights, cache).compile()


def _step(config, cached: bool, weights, cache) -> jax.Array:
    """Run one token of every sequence and return the next, int32 [B]."""
    tokens = jnp.zeros((cache.length.shape[0], 1), jnp.int32)
    model, prefix = Transformer(config), cache if cached else None
    hidden = model.apply(weights, tokens, cache.length[:, None], prefix).hidden
    return jnp.argmax(model.apply(weights, hidden[:, 0], method="logits"), axis=-1)


def _in_turn(programs: dict[str, Any], given: tuple, repeats: int) -> dict[str, float]:
    """Time programs in turn: median milliseconds of each; their first samples are discarded."""
    samples: dict[str, list[float]] = {name: [] for name in programs}
    for repeat in range(repeats + 1):
        for name in order_turns(list(programs), 0, repeat):
            _, seconds = time_call(programs[name], *given)
            if repeat:
                samples[name].append(1e3 * seconds)
    return {name: float(np.median(taken)) for name, taken in samples.items()}
