"""Time verification and tree building against an autoregressive step, at sizes that the goals name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.bench.architectures import DRAFTER
from jaxspec.bench.latency.cell import (
    Caches,
    compile_ar,
    compile_cell,
    count_slack,
    time_programs,
)
from jaxspec.bench.latency.goals import compare_piece
from jaxspec.bench.latency.latency_options import default_platform
from jaxspec.bench.latency.pieces import TreeMethod
from jaxspec.core.params import Params

REPEATS = 5


def measure_verification(params: Params, widths: Sequence[int], context: int) -> dict[str, Any]:
    """Time the pieces alone, each in a loop on the device, in turns with autoregressive steps.

    Args:
      params: random weights, see `jaxspec.bench.architectures`.
      widths: rows of the trees.
      context: rows of the cache.

    Returns:
      {rows: {"ar_ms", "verify_ms", "tree_ms": medians, "verify_over_ar": median over repeats}}.
    """
    platform, found = default_platform(), {}
    precision = "highest" if params.dtype == jnp.float32 else None
    with jax.default_matmul_precision(precision):
        method = TreeMethod(DRAFTER)
        capacity = context + count_slack(params, method, widths, platform)
        caches = Caches.random(params, DRAFTER, 1, capacity)
        plain = compile_ar(params, method, caches, context, platform)
        for rows in widths:
            options = dict(histogram=None, on_time=lambda: True, pieces=("tree", "verify"))
            timed = compile_cell(params, method, rows, caches, context, platform, **options)
            samples = time_programs(params, (plain, *timed), caches, context, REPEATS)
            found[str(rows)] = summarise_pieces(samples)
    return found


def summarise_pieces(samples: dict[str, list[float]]) -> dict[str, float | None]:
    """Summarise milliseconds of `ar`, `verify` and `tree`, taken in turns."""
    medians = {f"{name}_ms": float(np.median(times)) for name, times in samples.items()}
    cell = {name: {"samples": times} for name, times in samples.items()}
    return medians | {"verify_over_ar": compare_piece(cell, "verify", ["ar"])}
