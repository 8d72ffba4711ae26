"""Compile the large programs of a call: `jax.jit`, with options of the compiler that suit the device.

A program for a CPU holds one inner loop per layer, over the blocks of attention. XLA's passes over
such loops run again and again over the whole program. They find next to nothing, and take a fifth to
a third of its compilation.

On Hopper and later, XLA may time several kernels for each small sum, and take one that writes its
result by the bulk copy engine. Of jax 0.11.2's programs on an H100, those with one-dimensional copies
of this kind crashed (`docs/gpu.md`), so nothing is timed for sums.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax

from pallas_kernels.device import current_device

# Passes of XLA that are left out on a CPU. What they would move out of the loops of attention is a
# few additions; `jaxspec bench first` measures what they take.
LEFT_OUT = (
    "simplify-while-loops",
    "while-loop-invariant-code-motion",
    "while-loop-constant-sinking",
)


# Options for Hopper and later. Products are still timed.
UNTIMED_SUMS = {"xla_gpu_experimental_enable_fusion_autotuner": False}


@functools.cache
def knows_options(names: tuple[str, ...]) -> bool:
    """Whether this version of XLA knows these options of the compiler, which are switches."""
    options = dict.fromkeys(names, False)
    try:
        jax.jit(lambda x: x, compiler_options=options).lower(0.0).compile()
    except jax.errors.JaxRuntimeError:
        return False
    return True


class QuickJit:
    """A function that is compiled for each shape of its arguments, as by `jax.jit`."""

    def __init__(self, function: Callable[..., Any], leave_out: bool = True, **options: Any):
        """Wrap a function.

        Args:
          function: see `jax.jit`.
          leave_out: whether to leave passes out on a CPU.
          options: of `jax.jit`.
        """
        functools.update_wrapper(self, function)
        self._whole: Any = jax.jit(function, **options)
        passes = {"xla_disable_hlo_passes": ",".join(LEFT_OUT)} if leave_out else {}
        self._quick: Any = jax.jit(function, compiler_options=passes, **options)
        self._untimed: Any = jax.jit(function, compiler_options=dict(UNTIMED_SUMS), **options)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function; see `jax.jit`."""
        return self.choose(args[1:])(*args, **kwargs)

    def trace(self, *args: Any, **kwargs: Any) -> Any:
        """Return a `jax.stages.Traced` for these arguments or their shapes."""
        return self.choose().trace(*args, **kwargs)

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """Return a `jax.stages.Lowered` for these arguments or their shapes."""
        return self.choose().lower(*args, **kwargs)

    def _cache_size(self) -> int:
        """Count the compiled programs, as a function of `jax.jit` does."""
        return sum(one._cache_size() for one in (self._whole, self._quick, self._untimed))

    def choose(self, args: Sequence[Any] = ()) -> Any:
        """Return what `jax.jit` made for the device that programs are traced for now.

        Args:
          args: arguments of a call. Inside another program, where some are traced, JAX refuses
            options of the compiler.
        """
        if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(args)):
            return self._whole
        device = current_device()
        if device.platform == "cpu":
            return self._quick
        copies = (device.compute_capability or (0, 0)) >= (9, 0)
        return self._untimed if copies and knows_options(tuple(UNTIMED_SUMS)) else self._whole


def quick_jit(**options: Any) -> Callable[[Callable[..., Any]], QuickJit]:
    """Make a decorator that compiles a function by `QuickJit`; the options are those of its class."""
    return functools.partial(QuickJit, **options)
