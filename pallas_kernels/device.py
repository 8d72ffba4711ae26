"""The device that a program is compiled for, as far as the choice of a kernel depends on it."""

from __future__ import annotations

import dataclasses

from pallas_kernels import versions


@dataclasses.dataclass(frozen=True)
class Device:
    """A kind of device.

    Attributes:
      platform: `cpu`, `cuda`, or what jax calls it.
      compute_capability: (major, minor) of an NVIDIA GPU, else None.
      cores: its multiprocessors; None takes those of a common GPU of that capability.
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


def for_device(device: Device):
    """Context manager: programs traced inside are for `device`, whatever is here (ahead-of-time
    compilation).
    """
    return _target(device)


def current_device() -> Device:
    """What programs traced now are for: the device of `for_device`, else the one that computations
    run on.
    """
    return _target.value or describe(versions.default_device())


def describe(device) -> Device:
    """`Device` of a `jax.Device`."""
    capability = versions.compute_capability(device)
    return Device(
        "cuda" if capability else device.platform, capability, getattr(device, "core_count", None)
    )
