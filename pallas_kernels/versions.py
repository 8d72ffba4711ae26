"""Differences between versions of jax. No other module of this package knows about them.

Pallas chooses its GPU backend by the type of the compiler parameters. Without any, the choice
depends on the version, so kernels always pass `triton_params`.
"""

from __future__ import annotations

import importlib.util
import warnings
from typing import Any

import jax


def missing_triton() -> str | None:
    """Say why this jax cannot lower Pallas kernels through Triton; None if it can."""
    if importlib.util.find_spec("jax.experimental.pallas.triton") is None:
        return f"jax {jax.__version__} has no Triton lowering of Pallas kernels"
    return None


def vectorizes_sums() -> bool:
    """Whether XLA's CPU code adds up a product of a matrix in vector registers.

    jax 0.10.2 and 0.12.0 do; with 0.7.2 such a sum takes ten times as long as XLA's own product.
    """
    return jax.__version_info__ >= (0, 10)


def triton_params(warps: int, stages: int) -> Any:
    """Make compiler parameters that select Triton, and silence newer versions' warning about it."""
    from jax.experimental.pallas import triton

    # From jax 0.12 on, each lowering warns. It happens when the caller's program is lowered, so
    # this module cannot wrap it.
    warnings.filterwarnings(
        "ignore", message="The Pallas Triton backend is deprecated", category=DeprecationWarning
    )
    return triton.CompilerParams(num_warps=warps, num_stages=stages)


def trace_context(default: Any) -> Any:
    """Make a setting that is part of the keys of jit's caches.

    `.value` reads it, and `with setting(value)` sets it.
    """
    return jax.make_user_context(default)


def default_device() -> Any:
    """Return the default device of computations."""
    chosen = jax.config.jax_default_device
    if chosen is None:
        return jax.devices()[0]
    return jax.devices(chosen)[0] if isinstance(chosen, str) else chosen


def abstract_gpu_mesh(kind: str, cores: int) -> Any:
    """Make an abstract mesh of one NVIDIA GPU, to lower programs for a GPU you don't have.

    Args:
      kind: the driver's name of it, for example "NVIDIA H100 80GB HBM3".
      cores: number of its multiprocessors.
    """
    sharding = jax.sharding
    device_class = getattr(sharding, "AbstractDevice", None)
    if device_class is None:  # jax 0.7 lowers for any platform without a description of the device
        return sharding.AbstractMesh((), ())
    values = {"device_kind": kind, "num_cores": cores, "platform": "cuda"}
    known = {name: values[name] for name in device_class.__annotations__ if name in values}
    return sharding.AbstractMesh((), (), abstract_device=device_class(**known))


def compute_capability(device: Any) -> tuple[int, int] | None:
    """Return (major, minor) of an NVIDIA GPU; None for other devices."""
    text = getattr(device, "compute_capability", None)
    if device.platform not in ("gpu", "cuda") or not isinstance(text, str):
        return None
    parts = text.split(".")
    return (
        tuple(map(int, parts))
        if len(parts) == 2 and all(part.isdigit() for part in parts)
        else None
    )
