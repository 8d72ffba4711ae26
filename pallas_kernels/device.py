"""The device that a program is compiled for; the choice of a kernel depends on it."""

from __future__ import annotations

import dataclasses
from typing import Any

from pallas_kernels import versions


@dataclasses.dataclass(frozen=True)
class Device:
    """A kind of device.

    Attributes:
      platform: `cpu`, `cuda`, or another of jax's names.
      compute_capability: (major, minor) of an NVIDIA GPU, else None.
      cores: number of its multiprocessors; None for a common GPU of that capability.
    """

    platform: str
    compute_capability: tuple[int, int] | None = None
    cores: int | None = None

    def __str__(self) -> str:
        return (
            f"{self.platform} {'.'.join(map(str, self.compute_capability))}"
            if self.compute_capability
            else self.platform
        )


_target = versions.trace_context(None)


def for_device(device: Device) -> Any:
    """Make a context in which programs are traced for `device` (ahead-of-time compilation)."""
    return _target(device)


def current_device() -> Device:
    """Return the device that programs traced now are for: that of `for_device`, or the default."""
    return _target.value or describe_device(versions.default_device())


def describe_device(device: Any) -> Device:
    """Describe a `jax.Device`."""
    capability = versions.compute_capability(device)
    return Device(
        "cuda" if capability else device.platform, capability, getattr(device, "core_count", None)
    )
