"""Which implementation of an operation runs here.

An operation has one XLA reference that runs everywhere, and may have kernels for some devices. The environment variable
`JAXSPEC_KERNELS` (a name such as `reference`) overrides the choice.
"""

from __future__ import annotations

import os
from collections.abc import Callable

_IMPLEMENTATIONS: dict[str, dict[str, Callable]] = {}


def register(operation: str, name: str) -> Callable[[Callable], Callable]:
    """Decorator that adds an implementation `name` of `operation`."""

    def add(function: Callable) -> Callable:
        _IMPLEMENTATIONS.setdefault(operation, {})[name] = function
        return function

    return add


def resolve(operation: str) -> Callable:
    """The implementation of `operation` to use.

    Raises:
      ValueError: `JAXSPEC_KERNELS` names an implementation that does not exist.
    """
    found = _IMPLEMENTATIONS[operation]
    name = os.environ.get("JAXSPEC_KERNELS", "reference")
    if name not in found:
        raise ValueError(f"JAXSPEC_KERNELS={name!r} is not an implementation of {operation}; choose one of {sorted(found)}")
    return found[name]
