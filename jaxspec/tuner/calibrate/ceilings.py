"""Measure the device's ceilings: copy bandwidth, rate of a matrix product, last-level cache."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.core.runtime.clock import time_call
from pallas_kernels.aot.gpus import GPUS

# Megabytes of the copied array, and rows and columns of the multiplied matrices.
CEILING_SIZES = {"gpu": (2000, 8192), "cpu": (256, 1024)}


def measure_ceilings(dtype, *, megabytes: int, size: int, repeats: int = 5) -> dict[str, Any]:
    """Measure both ceilings, several times in turn.

    The copy reads and writes an array once per pass. The product multiplies two square matrices and
    accumulates in float32, like the products of the forwards.

    Args:
      dtype: dtype of the product.
      megabytes: size of the array that is copied; far more than the last-level cache.
      size: rows and columns of the matrices.

    Returns:
      `copy_bytes_per_second` and `matmul_flops_per_second`, each as {"median", "quartiles",
      "best"}, `megabytes`, `size`.
    """
    passes = 8
    copied = jnp.zeros(megabytes * 250_000, jnp.int32)
    left, right = (
        jax.random.normal(jax.random.key(i), (size, size), jnp.float32).astype(dtype)
        for i in (0, 1)
    )
    right = right / np.sqrt(size).astype(dtype)
    copy, product = (functools.partial(f, passes=passes) for f in (_copy, _product))
    copied, left = copy(copied), product(left, right)
    rates: dict[str, list[float]] = {"copy": [], "matmul": []}
    for _ in range(repeats):
        copied, seconds = time_call(copy, copied)
        rates["copy"].append(2 * passes * copied.nbytes / seconds)
        left, seconds = time_call(product, left, right)
        rates["matmul"].append(2 * passes * float(size) ** 3 / seconds)
    return {
        "copy_bytes_per_second": _summary(rates["copy"]),
        "matmul_flops_per_second": _summary(rates["matmul"]),
        "megabytes": megabytes,
        "size": size,
    }


@functools.partial(jax.jit, static_argnames="passes", donate_argnums=0)
def _copy(x, passes):
    return jax.lax.fori_loop(0, passes, lambda i, x: x + 1, x)


@functools.partial(jax.jit, static_argnames="passes", donate_argnums=0)
def _product(x, y, passes):
    return jax.lax.fori_loop(0, passes, lambda i, x: x @ y, x)


def _summary(values: list[float]) -> dict[str, Any]:
    low, middle, high = np.percentile(values, [25, 50, 75])
    return {
        "median": float(middle),
        "quartiles": [float(low), float(high)],
        "best": float(max(values)),
    }


def find_cache_bytes() -> float | None:
    """Find the size of the default device's last-level cache; None if it is unknown."""
    device = jax.devices()[0]
    if device.platform == "gpu":
        return next(
            (
                gpu.l2
                for name, gpu in GPUS.items()
                if re.search(rf"\b{name}\b", device.device_kind.lower())
            ),
            None,
        )
    sizes = [
        path.read_text().strip()
        for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    ]
    return max(
        (
            float(text[:-1]) * {"K": 1024, "M": 2**20}[text[-1]]
            for text in sizes
            if text[-1:] in ("K", "M")
        ),
        default=None,
    )


def find_memory_bytes() -> float:
    """Find the usable memory of the default device: JAX's share of a GPU, or a host's free memory."""
    stats = jax.devices()[0].memory_stats() or {}
    if "bytes_limit" in stats:
        return float(stats["bytes_limit"])
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return 1024.0 * int(line.split()[1])
    return float("inf")


def default_platform() -> str:
    """Return the key of defaults: `gpu` or `cpu`."""
    return "gpu" if jax.default_backend() == "gpu" else "cpu"
