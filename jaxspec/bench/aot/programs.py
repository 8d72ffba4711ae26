"""The programs of a decode call of a named architecture, of shapes alone, ready to compile.

Nothing is allocated, so an 8B model compiles on a laptop.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.bench.aot.options import describe_call, make_policy
from jaxspec.bench.architectures import DRAFTER, abstract_params
from jaxspec.call.prefill import prefill
from jaxspec.core.sampling.settings import make_sampling
from jaxspec.core.state import DecodeState, Request, Tree
from jaxspec.io.weights.assemble import write_rows
from jaxspec.round.context import Round, compile_phase
from jaxspec.round.draft import draft
from jaxspec.round.grow import grow
from jaxspec.round.loop import run
from jaxspec.round.plan import make_plan
from pallas_kernels.aot.lower import Program


def decode_loop(
    *,
    arch: str,
    drafter: str = DRAFTER,
    builder: str | None = "best_first",
    budget: int = 64,
    capacity: int = 2048,
    batch: int = 1,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    acceptance: str = "match",
    dtype: str = "bfloat16",
    layers: int | None = None,
    policy: str | None = None,
    quantize: str | None = None,
    cache_dtype: str | None = None,
) -> Program:
    """Make the program `jaxspec.round.loop.run` of a named architecture, ready to compile. Its
    arguments are shapes, and its caches are donated.

    Args:
      arch: one of `architectures.ARCHITECTURES`.
      drafter: `ar`, `jetspec`, `dspark`, `eagle3`, `griffin` or `specblock`.
      builder: see `jaxspec.decode`; None is the drafter's default; not read by `ar`.
      budget: see `jaxspec.decode`; not read by `ar`.
      capacity: rows of the caches.
      batch: number of sequences.
      temperature, top_k, top_p, min_p: see `make_sampling`; a temperature of 0 is greedy.
      acceptance: see `jaxspec.decode`; not read by `ar`.
      layers: use only this many of the target's layers; None: all.
      policy: a rule of the controller, which verifies a power of four of rows, up to the budget, or
        does not draft; `auto`, the default's on a GPU, with its own rows; or `blockpilot`, which
        chooses among blocks of 4, 8 and 16 slots.
      quantize: weights of the target in few bits, see `abstract_params`.
      cache_dtype: see `jaxspec.load`.

    Returns:
      The program, with the fact `cache_bytes`: the bytes of all donated caches.
    """
    start = prefill_program(
        arch=arch,
        drafter=drafter,
        builder=builder,
        budget=budget,
        capacity=capacity,
        batch=batch,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        acceptance=acceptance,
        dtype=dtype,
        layers=layers,
        policy=policy,
        quantize=quantize,
        cache_dtype=cache_dtype,
    )
    params, request = start.args[:2]
    config = start.static["config"]
    state = jax.eval_shape(functools.partial(start.function, **start.static), *start.args)
    rounds = jax.ShapeDtypeStruct((), jnp.int32)
    return Program(
        run,
        (params, request, state, rounds),
        {"config": config},
        {"cache_bytes": count_held(state)},
    )


def prefill_program(*, batch: int, capacity: int, **options: Any) -> Program:
    """Make the program that runs the prompts before `decode_loop` of the same options."""
    spec, config = describe_call(**options, capacity=capacity)
    sampling = {name: options[name] for name in ("temperature", "top_k", "top_p", "min_p")}
    plan = make_plan(spec, config)
    decides = make_policy(options["policy"], options["budget"], spec) if config.policy else None
    params = abstract_params(spec, jnp.dtype(options["dtype"]), options["quantize"])
    request = Request(
        limit=np.zeros(batch, np.int32),
        stop=np.zeros(8, np.int32),
        seed=np.int32(0),
        sequence=np.zeros(batch, np.uint32),
        sampling=make_sampling(**sampling)[1],
        controls=decides and decides.controls,
    )
    control = plan.policy.init(plan.shape(batch)) if plan.policy else None
    tokens, lengths = np.zeros((batch, capacity), np.int32), np.zeros(batch, np.int32)
    shapes = jax.eval_shape(lambda *arrays: arrays, request, tokens, lengths, control)
    static = {"config": config, "capacity": capacity, "max_tokens": capacity}
    state = jax.eval_shape(functools.partial(prefill, **static), params, *shapes)
    return Program(prefill, (params, *shapes), static, {"cache_bytes": count_held(state)})


def draft_program(**options: Any) -> Program:
    """Make the program that drafts in a round of `decode_loop` of the same options, up to the tree."""
    loop = decode_loop(**options)
    params, request, state, _ = loop.args
    return Program(compile_phase(_draft_tree), (params, request, state), loop.static, loop.facts)


def _draft_tree(round: Round, state: DecodeState) -> Tree:
    noise = round.noise(state.cache.length + 1, round.plan.longest)
    return grow(round, state, draft(round, state, noise))


def count_held(state: DecodeState, devices: int = 1) -> int:
    """Compute the bytes of all caches on a device; `devices` share the target's."""

    def count(tree: Any) -> int:
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))

    return count(state.cache) // devices + count(state.draft)


def make_write_program(
    *,
    array: Sequence[int],
    rows: Sequence[int],
    transpose: bool,
    stored: str = "bfloat16",
    dtype: str = "bfloat16",
) -> Program:
    """Make the program that writes rows of a stored tensor into an array of the tree.

    Args:
      array: shape of the array.
      rows: shape of the rows.
      transpose: whether they are written transposed.
      stored: dtype of the rows.
      dtype: dtype of the array.
    """
    args = (
        jax.ShapeDtypeStruct(tuple(array), dtype),
        jax.ShapeDtypeStruct(tuple(rows), stored),
        jax.ShapeDtypeStruct((len(array),), jnp.int32),
    )
    return Program(write_rows, args, {"transpose": transpose})
