"""Which implementation of an operation runs where.

Every operation has an XLA reference that runs everywhere, and may have kernels for some devices and
shapes. The choice is made while a program is traced, from what is known then: the device it is for,
the version of jax and the static shape. The environment variable `JAXSPEC_KERNELS`, or `using`,
names an implementation instead; one that cannot run is then an error. The variable is read when a
program is traced: what is compiled already stays.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Any, NamedTuple

from pallas_kernels import tuning, versions
from pallas_kernels.device import Device, current_device, describe, for_device

__all__ = [
    "Choice",
    "Device",
    "Problem",
    "describe",
    "explain",
    "for_device",
    "names",
    "resolve",
    "using",
]

Problem = tuning.Problem


class Implementation(NamedTuple):
    """One way to compute an operation.

    Attributes:
      module: where the function is, which has the operation's name or `function`'s; imported when
        it is chosen.
      unsupported: (problem or None, device) -> why it cannot run, None where it can. Without a
        problem any shape is meant.
      automatic: whether it may be chosen without being named.
    """

    module: str
    function: str
    unsupported: Callable[[Any, Device], str | None]
    automatic: bool = True


class Operation(NamedTuple):
    """Implementations in order of preference, and what they are for.

    Attributes:
      outside: problem -> why the kernels are not meant for it (then the reference serves even where
        another is named), or None.
    """

    outside: Callable[[Any], str | None]
    implementations: dict[str, Implementation]


class Choice(NamedTuple):
    """An implementation and the reason for it."""

    name: str
    function: Callable
    reason: str


def _anywhere(problem, device) -> None:
    return None


_OPERATIONS = {
    "tree_attention": Operation(
        tuning.outside,
        {
            "triton": Implementation(
                "pallas_kernels.tree_attention", "tree_attention", tuning.unsupported
            ),
            # Not before a measurement on a GPU says that it is faster there.
            "mosaic": Implementation(
                "pallas_kernels.tree_attention_mosaic",
                "tree_attention",
                tuning.unsupported_mosaic,
                automatic=False,
            ),
            "interpret": Implementation(
                "pallas_kernels.tree_attention",
                "interpreted",
                tuning.unsupported_shape,
                automatic=False,
            ),
            "reference": Implementation("pallas_kernels.reference", "tree_attention", _anywhere),
        },
    )
}
_named = versions.trace_context(None)


def names(operation: str = "tree_attention") -> list[str]:
    """Names of the implementations of `operation`, preferred ones first."""
    return list(_OPERATIONS[operation].implementations)


def using(name: str | None):
    """Context manager: programs traced inside use the implementation `name`; None chooses again."""
    return _named(name)


def resolve(operation: str, problem: Problem | None = None) -> Callable:
    """The implementation of `operation` to use, see `explain`."""
    return explain(operation, problem).function


def explain(operation: str, problem: Problem | None = None, device: Device | None = None) -> Choice:
    """Which implementation of `operation` runs, and why.

    Args:
      operation: `tree_attention`.
      problem: the call's static shape; None asks what the device gets in general.
      device: what the program is for; None is what programs traced now are for.

    Raises:
      ValueError: the implementation that `JAXSPEC_KERNELS` or `using` names does not exist or
        cannot run.
    """
    found, device = _OPERATIONS[operation], device or current_device()
    source, name = (
        ("using", _named.value)
        if _named.value
        else ("JAXSPEC_KERNELS", os.environ.get("JAXSPEC_KERNELS"))
    )
    if name and name not in found.implementations:
        raise ValueError(
            f"{source}={name!r} is no implementation of {operation}: choose one of {', '.join(names(operation))}"
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
    raise ValueError(
        f"{operation} has no implementation for {device}"
    )  # not while there is a reference


def _choice(operation: Operation, name: str, reason: str) -> Choice:
    implementation = operation.implementations[name]
    return Choice(
        name,
        getattr(importlib.import_module(implementation.module), implementation.function),
        reason,
    )
