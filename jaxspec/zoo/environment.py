"""Report the environment that a diagnosis was made in."""

from __future__ import annotations

import os
import platform
from typing import Any

import jax

_MEMORY = (
    "XLA_PYTHON_CLIENT_PREALLOCATE",
    "XLA_PYTHON_CLIENT_MEM_FRACTION",
    "XLA_PYTHON_CLIENT_ALLOCATOR",
    "XLA_FLAGS",
)
_STATS = ("bytes_in_use", "peak_bytes_in_use", "bytes_limit")


def report_environment() -> dict[str, Any]:
    """Report versions, device, kernels in use and memory settings."""
    import flax
    import jaxlib

    from pallas_kernels.registry import explain, operations

    device = jax.devices()[0]
    stats = device.memory_stats() or {}
    kernels = {name: explain(name) for name in operations()}
    return {
        "versions": f"jax {jax.__version__}, jaxlib {jaxlib.__version__}, flax {flax.__version__}, "
        f"Python {platform.python_version()}",
        "device": f"{device.platform} {device.device_kind}, {jax.device_count()} in all",
        "kernels": ", ".join(f"{name}: {one.name} ({one.reason})" for name, one in kernels.items()),
        "memory settings": ", ".join(
            f"{name}={os.environ[name]}" for name in _MEMORY if name in os.environ
        )
        or "defaults",
        "device memory": ", ".join(f"{name} {stats[name]:,}" for name in _STATS if name in stats)
        or "not reported",
    }


def render_environment(environment: dict[str, Any]) -> str:
    """Format the environment as lines of text."""
    return "\n".join(f"{name}: {value}" for name, value in environment.items())
