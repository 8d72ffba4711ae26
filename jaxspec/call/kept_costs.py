"""Where measured round costs are kept: a file for each device, jax version, model and setting."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import jax

from jaxspec.core.params import Params
from jaxspec.io.processor import describe_processor
from jaxspec.io.user_cache import user_cache
from jaxspec.targets.layouts.registry import find_layout


def describe_model(params: Params, method: str) -> tuple[Any, ...]:
    """List what the time of a round depends on in a model: sizes, dtype, quantisation, devices.

    Args:
      method: the drafter's name.
    """
    # In each layout weights compute in the same dtype, but at different speeds.
    layout = find_layout(params.target)
    weights = str(params.dtype) if layout is None else f"{params.dtype} {layout.name}"
    if params.layout is not None:
        weights += f" on {params.layout.devices} devices"
    return params.spec.target, params.spec.drafter(method), weights


def find_kept(method: str, *described: Any) -> Path:
    """Return the path of the file with the costs of a setting on this device.

    The folder is in `jaxspec.io.user_cache.user_cache`.

    Args:
      method: the drafter's name.
      described: all else that the time of a round depends on; only their `repr` counts.
    """
    first = jax.devices()[0]
    if first.platform == "cpu":
        described = (*described, describe_processor())
    digest = hashlib.sha256(repr(described).encode()).hexdigest()[:16]
    device = first.device_kind.replace(" ", "-").replace("/", "-")
    return user_cache("costs") / f"{device}-jax{jax.__version__}-{method}-{digest}.json"
