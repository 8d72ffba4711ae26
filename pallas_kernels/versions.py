"""What differs between versions of jax: the one module of this package that knows about them.

Pallas chooses its GPU backend by the type of the compiler parameters, and without any the choice
changes with the version: kernels here always pass `triton_params`.
"""

from __future__ import annotations

import importlib.util
import inspect
import warnings
from typing import Any

import jax


def missing_triton() -> str | None:
    """Why this jax cannot lower Pallas kernels through Triton; None where it can."""
    if importlib.util.find_spec("jax.experimental.pallas.triton") is None:
        return f"jax {jax.__version__} has no Triton lowering of Pallas kernels"
    return None


def triton_params(warps: int, stages: int) -> Any:
    """Compiler parameters that select Triton; the warning that newer versions give when they lower
    it is silenced.
    """
    from jax.experimental.pallas import triton

    # From jax 0.12 on each lowering warns. It comes when the caller's program is lowered, so
    # nothing here can wrap it.
    warnings.filterwarnings(
        "ignore", message="The Pallas Triton backend is deprecated", category=DeprecationWarning
    )
    return triton.CompilerParams(num_warps=warps, num_stages=stages)


def missing_mosaic() -> str | None:
    """Why this jax cannot lower Pallas kernels through Mosaic GPU; None where it can."""
    if jax.__version_info__ < (0, 10):
        return f"jax {jax.__version__} is too old for Mosaic GPU: install 0.10 or newer"
    if importlib.util.find_spec("jax.experimental.pallas.mosaic_gpu") is None:
        return f"jax {jax.__version__} has no Mosaic GPU lowering of Pallas kernels"
    if jax.__version_info__ < (0, 11) and importlib.util.find_spec("absl") is None:
        return f"Mosaic GPU of jax {jax.__version__} needs absl: pip install absl-py"
    return None


def mosaic_gpu() -> Any:
    """Pallas' Mosaic GPU module, imported when a kernel needs it."""
    from jax.experimental.pallas import mosaic_gpu as plgpu

    return plgpu


def mosaic_tiled(shape: tuple[int, ...], dtype: Any) -> Any:
    """Shared memory of `shape` in the swizzled tiles that bulk copies write and matrix products of
    2 byte types read.
    """
    plgpu = mosaic_gpu()
    return plgpu.SMEM(
        shape, dtype, transforms=(plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))
    )


def mosaic_load(ref: Any, layout: Any) -> jax.Array:
    """What `ref` holds, in registers of `layout`."""
    plgpu = mosaic_gpu()
    if "idx" in inspect.signature(plgpu.load).parameters:  # until jax 0.11
        return plgpu.load(ref, (), layout=layout, optimized=False)
    return plgpu.load(ref, layout=layout, optimized=False)


def mosaic_interpreter() -> Any:
    """What makes Mosaic GPU kernels run in jax' interpreter, which reports races too."""
    return mosaic_gpu().InterpretGPUParams(detect_races=True)


def trace_context(default: Any):
    """A setting that is part of the keys of jit's caches: `.value` reads it, `with setting(value)`
    sets it.
    """
    return jax.make_user_context(default)


def default_device() -> Any:
    """The device that computations run on unless something says otherwise."""
    chosen = jax.config.jax_default_device
    if chosen is None:
        return jax.devices()[0]
    return jax.devices(chosen)[0] if isinstance(chosen, str) else chosen


def abstract_gpu_mesh(kind: str, cores: int):
    """An abstract mesh of one NVIDIA GPU: under it programs are lowered for a GPU that is not
    there.

    Args:
      kind: what the driver calls it, such as "NVIDIA H100 80GB HBM3". cores: its multiprocessors.
    """
    sharding = jax.sharding
    device_class = getattr(sharding, "AbstractDevice", None)
    if device_class is None:  # jax 0.7 lowers for any platform without a description of the device
        return sharding.AbstractMesh((), ())
    values = {"device_kind": kind, "num_cores": cores, "platform": "cuda"}
    known = {name: values[name] for name in device_class.__annotations__ if name in values}
    return sharding.AbstractMesh((), (), abstract_device=device_class(**known))


def compute_capability(device: Any) -> tuple[int, int] | None:
    """(major, minor) of an NVIDIA GPU; None for everything else."""
    text = getattr(device, "compute_capability", None)
    if device.platform not in ("gpu", "cuda") or not isinstance(text, str):
        return None
    parts = text.split(".")
    return (
        tuple(map(int, parts))
        if len(parts) == 2 and all(part.isdigit() for part in parts)
        else None
    )
