"""Compile the decode loop of a named architecture for a GPU that need not be there, and say what a round became.

Weights are shapes alone: nothing is allocated, and an 8B model compiles on a laptop.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from jaxspec.architectures import DRAFTER, abstract_params, architecture
from jaxspec.loop import prefill, run
from jaxspec.params import Spec
from jaxspec.plan import DecodeConfig, make_plan
from jaxspec.sampling import make_sampling, sequence_keys
from jaxspec.state import Request
from pallas_kernels.aot import Program, compile_report

_PROMPT = 64
_DTYPES = ("bfloat16", "float16", "float32")


def decode_loop(
    *,
    arch: str,
    method: str = DRAFTER,
    builder: str | None = "best_first",
    budget: int = 64,
    capacity: int = 2048,
    batch: int = 1,
    temperature: float = 0.0,
    dtype: str = "bfloat16",
    layers: int | None = None,
    max_tokens: int = 256,
) -> Program:
    """`jaxspec.loop.run` of a named architecture with its caches donated, to be compiled; arguments are shapes.

    Args:
      arch: one of `architectures.ARCHITECTURES`.
      method: `ar` or `jetspec`. builder, budget: as of `jaxspec.decode` (not read by `ar`).
      capacity: rows of the caches. batch: sequences. temperature: 0 is greedy, another samples (`match`, coupled).
      layers: the target's, where fewer than the architecture has.
    """
    if dtype not in _DTYPES:
        raise ValueError(f"unknown dtype {dtype!r}: choose one of {', '.join(_DTYPES)}")
    spec = architecture(arch) if layers is None else _fewer_layers(architecture(arch), layers)
    sampling, values = make_sampling(temperature)
    tree = {} if method == "ar" else {"builder": builder, "budget": budget}
    config = DecodeConfig(method, sampling, **tree)
    longest = make_plan(spec, config).longest
    if capacity < _PROMPT + longest:
        raise ValueError(f"a cache of {capacity} rows is too small: give at least {_PROMPT + longest}")
    params = abstract_params(spec, jnp.dtype(dtype))

    def make_request():
        keys = sequence_keys(0, jnp.zeros(batch, jnp.uint32))
        return Request(jnp.zeros(batch, jnp.int32), jnp.zeros(4, jnp.int32), keys, values)

    request = jax.eval_shape(make_request)
    tokens, one = (jax.ShapeDtypeStruct(shape, jnp.int32) for shape in ((batch, _PROMPT), (batch,)))
    start = functools.partial(prefill, config=config, capacity=capacity, max_tokens=max_tokens)
    state = jax.eval_shape(start, params, request, tokens, one)
    return Program(run, (params, request, state, jax.ShapeDtypeStruct((), jnp.int32)), {"config": config})


def _fewer_layers(spec: Spec, layers: int) -> Spec:
    """`spec` with a target of `layers` layers and a head of as many at most, that reads the last of them."""
    name, head = spec.drafters[0]
    features = tuple(range(layers))[-len(head.feature_layers) :]
    head = dataclasses.replace(head, num_layers=min(layers, head.num_layers), feature_layers=features)
    return dataclasses.replace(spec, target=dataclasses.replace(spec.target, num_layers=layers), drafters=((name, head),))


def report(gpu: str = "h100", *, large: int = 2**23, spills: bool = True, **options) -> dict[str, Any]:
    """Compile `decode_loop(**options)` for `gpu`, see `pallas_kernels.aot.compile_report`.

    Returns:
      Its report, with `options` and `cache_bytes`: the bytes of all donated caches.

    Raises:
      ValueError: an option out of range. ImportError: the CUDA plugin is not installed.
    """
    program = decode_loop(**options)
    caches = [cache for cache in (program.args[2].cache, program.args[2].draft) if cache is not None]
    held = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(caches))
    compiled = compile_report("jaxspec.tools.aot:decode_loop", options, gpu, large=large, spills=spills)
    return {"options": options, "cache_bytes": held} | compiled
