"""Compile the large programs of a call: `jax.jit`, without passes that a CPU's programs do not need.

A program for a CPU holds one inner loop per layer, over the blocks of attention. XLA's passes over
such loops run again and again over the whole program. They find next to nothing, and take a fifth to
a third of its compilation.
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


class QuickJit:
    """A function that is compiled for each shape of its arguments, as by `jax.jit`."""

    def __init__(self, function: Callable[..., Any], **options: Any):
        """Wrap a function.

        Args:
          function: see `jax.jit`.
          options: of `jax.jit`.
        """
        functools.update_wrapper(self, function)
        self._whole: Any = jax.jit(function, **options)
        passes = {"xla_disable_hlo_passes": ",".join(LEFT_OUT)}
        self._quick: Any = jax.jit(function, compiler_options=passes, **options)

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
        return self._whole._cache_size() + self._quick._cache_size()

    def choose(self, args: Sequence[Any] = ()) -> Any:
        """Return what `jax.jit` made for the device that programs are traced for now.

        Args:
          args: arguments of a call. Inside another program, where some are traced, JAX refuses
            options of the compiler.
        """
        inside = any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(args))
        on_cpu = current_device().platform == "cpu"
        return self._quick if on_cpu and not inside else self._whole


def quick_jit(**options: Any) -> Callable[[Callable[..., Any]], QuickJit]:
    """Make a decorator that compiles a function by `QuickJit`; the options are those of `jax.jit`."""
    return functools.partial(QuickJit, **options)
