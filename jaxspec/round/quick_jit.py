"""Compile the large programs of a call: `jax.jit`, with options of the compiler that suit the
device.

A program for a CPU holds one inner loop per layer, over the blocks of attention. XLA's passes over
such loops run again and again over the whole program. They find next to nothing, and take a fifth
to a third of its compilation.

Programs for Hopper and later leave out choices of XLA, see `pallas_kernels.caution`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future
from typing import Any

import jax

from jaxspec.core.runtime.background import compile_in_background
from jaxspec.targets.layouts.registry import converts
from pallas_kernels.caution import CAUTIOUS, TRITON_PRODUCTS, choose_cautious
from pallas_kernels.device import Device, current_device

# Passes of XLA that are left out on a CPU. What they would move out of the loops of attention is a
# few additions; `python -m benchmarks first` measures what they take.
LEFT_OUT = (
    "simplify-while-loops",
    "while-loop-invariant-code-motion",
    "while-loop-constant-sinking",
)


def knows_options(options: Mapping[str, bool | str]) -> bool:
    """Whether this version of XLA knows these options of the compiler, and these values of them."""
    try:
        jax.jit(lambda x: x, compiler_options=dict(options)).lower(0.0).compile()
    except jax.errors.JaxRuntimeError:
        return False
    return True


@functools.cache
def find_known() -> dict[str, bool | str]:
    """Return those of CAUTIOUS that this version of XLA knows."""
    if knows_options(CAUTIOUS):
        return dict(CAUTIOUS)
    return {name: value for name, value in CAUTIOUS.items() if knows_options({name: value})}


def choose_options(
    device: Device, leave_out: bool = False, quantized: bool = False
) -> dict[str, bool | str]:
    """Choose options of the compiler for programs of a device.

    Args:
      leave_out: whether to leave passes out on a CPU.
      quantized: whether weights are quantised. Only Triton's products convert them as they read
        them; for cuBLAS, XLA would write all of them in bfloat16 first.
    """
    if device.platform == "cpu":
        return {"xla_disable_hlo_passes": ",".join(LEFT_OUT)} if leave_out else {}
    cautious = choose_cautious(device).keys() - ({TRITON_PRODUCTS} if quantized else set())
    return {name: value for name, value in find_known().items() if name in cautious}


class QuickJit:
    """A function that is compiled for each shape of its arguments, as by `jax.jit`."""

    def __init__(self, function: Callable[..., Any], leave_out: bool = False, **options: Any):
        """Wrap a function.

        Args:
          function: see `jax.jit`.
          leave_out: see `choose_options`.
          options: of `jax.jit`.
        """
        functools.update_wrapper(self, function)
        self._function, self._leave_out, self._options = function, leave_out, options
        self._made: dict[tuple[tuple[str, bool | str], ...], Any] = {}
        self._begun: dict[Hashable, Future[None]] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function; see `jax.jit`."""
        return self.choose(*args)(*args, **kwargs)

    def trace(self, *args: Any, **kwargs: Any) -> Any:
        """Return a `jax.stages.Traced` for these arguments or their shapes."""
        return self.choose(*args).trace(*args, **kwargs)

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """Return a `jax.stages.Lowered` for these arguments or their shapes."""
        return self.choose(*args).lower(*args, **kwargs)

    def begin(self, key: Hashable, lower: Callable[[], Callable[[], None]]) -> Future[None]:
        """Begin to compile in the background, once for each key.

        Args:
          key: what the program depends on. A wrong one costs time only: what is missing is compiled
            where it is called.
          lower: lowers the function for its arguments, and returns what compiles it.
        """
        if key not in self._begun:
            self._begun[key] = compile_in_background(lower())
        return self._begun[key]

    def _cache_size(self) -> int:
        """Count the compiled programs, as a function of `jax.jit` does."""
        return sum(made._cache_size() for made in self._made.values())

    def choose(self, params: Any = None, *args: Any) -> Any:
        """Return what `jax.jit` made for the device that programs are traced for now.

        Args:
          params: the first argument of a call.
          args: the others. Inside another program, where some are traced, JAX refuses options of
            the compiler.
        """
        inside = any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(args))
        quantized = converts(getattr(params, "target", {}))
        chosen = {} if inside else choose_options(current_device(), self._leave_out, quantized)
        key = tuple(chosen.items())
        if key not in self._made:
            self._made[key] = jax.jit(self._function, compiler_options=chosen, **self._options)
        return self._made[key]


def quick_jit(**options: Any) -> Callable[[Callable[..., Any]], QuickJit]:
    """Make a decorator that compiles a function by `QuickJit`; the options are those of its class."""
    return functools.partial(QuickJit, **options)
