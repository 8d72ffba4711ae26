"""Choose the implementation of an operation.

Every operation has XLA implementations that run everywhere, one of them its reference, and may have
kernels for some devices and shapes. The choice is made when a program is traced; it depends on the
program's device, the version of jax and the static shape. The environment variable
`JAXSPEC_KERNELS`, or `using`, names an implementation instead; if that cannot run, tracing fails.
Compiled programs keep their choice.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable
from typing import Any, NamedTuple

from pallas_kernels import tuning, versions
from pallas_kernels.device import Device, current_device, describe_device, for_device

__all__ = [
    "Choice",
    "Device",
    "Problem",
    "describe_device",
    "explain",
    "find_name",
    "for_device",
    "names",
    "resolve_kernel",
    "using",
]

Problem = tuning.Problem


class Implementation(NamedTuple):
    """One way to compute an operation.

    Attributes:
      module: module of the function, imported when the implementation is chosen.
      function: name of the function.
      unsupported: (problem or None, device) -> why it cannot run, or None if it can. A problem of
        None means any shape.
      automatic: whether it may be chosen without being named.
    """

    module: str
    function: str
    unsupported: Callable[[Any, Device], str | None]
    automatic: bool = True


class Operation(NamedTuple):
    """Implementations in order of preference, and the problems that they serve.

    Attributes:
      outside: problem -> why the kernels are not meant for it, or None. The reference serves these
        problems, even if another implementation is named.
      implementations: {name: implementation}, preferred ones first.
    """

    outside: Callable[[Any], str | None]
    implementations: dict[str, Implementation]


class Choice(NamedTuple):
    """An implementation and the reason for it."""

    name: str
    function: Callable
    reason: str


def _anywhere(problem: Problem | None, device: Device) -> None:
    return None


_PACKED = "pallas_kernels.attention.packed_attention"
_OPERATIONS = {
    "tree_attention": Operation(
        tuning.outside,
        {
            "triton": Implementation(
                "pallas_kernels.attention.tree_attention", "tree_attention", tuning.unsupported
            ),
            "interpret": Implementation(
                "pallas_kernels.attention.tree_attention",
                "interpreted",
                tuning.unsupported_shape,
                automatic=False,
            ),
            "blocks": Implementation(
                "pallas_kernels.attention.blocks", "tree_attention", _anywhere
            ),
            "reference": Implementation("pallas_kernels.reference", "tree_attention", _anywhere),
        },
    ),
    # Implementations of the same names; all but the Triton kernel take rows by sequence.
    "packed_attention": Operation(
        tuning.outside,
        {
            "triton": Implementation(_PACKED, "packed_attention", tuning.unsupported),
            "interpret": Implementation(
                _PACKED, "interpreted", tuning.unsupported_shape, automatic=False
            ),
            "blocks": Implementation(_PACKED, "by_sequence", _anywhere),
            "reference": Implementation(_PACKED, "by_sequence", _anywhere),
        },
    ),
}
_named = versions.trace_context(None)


def operations() -> list[str]:
    """List the operations that have implementations."""
    return list(_OPERATIONS)


def names(operation: str = "tree_attention") -> list[str]:
    """List the names of the implementations of `operation`, preferred ones first."""
    return list(_OPERATIONS[operation].implementations)


def using(name: str | None) -> Any:
    """Make a context in which programs are traced with the implementation `name`.

    None chooses automatically again.
    """
    return _named(name)


def find_name() -> str | None:
    """Return the implementation that `using` or else `JAXSPEC_KERNELS` names; None if none does."""
    return _named.value or os.environ.get("JAXSPEC_KERNELS")


def resolve_kernel(operation: str, problem: Problem | None = None) -> Callable:
    """Return the implementation of `operation` to use; see `explain`."""
    return explain(operation, problem).function


def find_triton(kernel: Callable, serves: bool = True) -> Callable | None:
    """Return a kernel for the device that programs are traced for; None if XLA is to compute this.

    `JAXSPEC_KERNELS` and `using` choose as they do for attention: `interpret` and `reference` apply
    to all kernels.

    Args:
      kernel: takes `interpret`.
      serves: whether it serves the call's shapes and dtypes on a GPU.
    """
    name = find_name()
    if name == "interpret":
        return functools.partial(kernel, interpret=True)
    if name == "reference" or not serves or tuning.unsupported(None, current_device()):
        return None
    return kernel


def reads_places() -> bool:
    """Whether attention that is traced now can read some sequences of a larger cache where they
    lie.

    Then `layer` may be int32 [2], a layer and the first of these sequences.
    """
    return explain("tree_attention").name in ("blocks", "reference")


def explain(operation: str, problem: Problem | None = None, device: Device | None = None) -> Choice:
    """Choose the implementation of `operation` to run, and give the reason.

    Args:
      operation: `tree_attention`, or `packed_attention` of packed rows.
      problem: static shape of the call (default: any shape).
      device: device that the program is for (default: that of programs traced now).

    Raises:
      ValueError: `JAXSPEC_KERNELS` or `using` names an implementation that does not exist or cannot
        run.
    """
    found, device = _OPERATIONS[operation], device or current_device()
    source, name = ("using" if _named.value else "JAXSPEC_KERNELS"), find_name()
    if name and name not in found.implementations:
        raise ValueError(
            f"{source}={name!r} is not an implementation of {operation}: "
            f"choose one of {', '.join(names(operation))}"
        )
    beyond = found.outside(problem) if problem else None
    if beyond:
        return _choice(found, "reference", f"kernels are not meant for {beyond}")
    if name:
        reason = found.implementations[name].unsupported(problem, device)
        if reason:
            raise ValueError(f"{source}={name!r} cannot run {operation} here: {reason}")
        return _choice(found, name, f"named by {source}")
    refused = []
    for candidate, implementation in found.implementations.items():
        reason = (
            implementation.unsupported(problem, device)
            if implementation.automatic
            else "runs only when named"
        )
        if reason is None:
            return _choice(found, candidate, "; ".join(refused) or f"preferred on {device}")
        if implementation.automatic:
            refused.append(f"{candidate}: {reason}")
    # Attention in blocks runs everywhere, so this is never reached.
    raise ValueError(f"{operation} has no implementation for {device}")


def _choice(operation: Operation, name: str, reason: str) -> Choice:
    implementation = operation.implementations[name]
    return Choice(
        name,
        getattr(importlib.import_module(implementation.module), implementation.function),
        reason,
    )
