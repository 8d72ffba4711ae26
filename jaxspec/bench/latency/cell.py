"""Compile the programs of one width of the latency benchmark, and time them in turn at every
context.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxspec.bench.latency import floors
from jaxspec.bench.latency.count_kernels import count_kernels
from jaxspec.bench.latency.floors import Work
from jaxspec.bench.latency.forced import order_histogram, run_forced
from jaxspec.bench.latency.pieces import (
    TreeMethod,
    grows,
    list_pieces,
    make_input,
    make_random_cache,
    make_random_draft,
    make_request,
    make_state,
    make_tree_config,
    repeat_piece,
)
from jaxspec.bench.measure.phases import PIECES
from jaxspec.core.params import Params
from jaxspec.core.runtime.clock import order_turns, time_call
from jaxspec.core.state import KVCache
from jaxspec.core.tree import root_only
from jaxspec.round.loop import run
from jaxspec.round.plan import DecodeConfig, make_plan

# Repetitions in one program: of pieces that read the weights, of small pieces, and of rounds of a
# replayed histogram.
TIMES = {"gpu": (20, 100, 64), "cpu": (8, 32, 32)}
_LARGE = ("ar", "draft", "verify", "round")


@dataclasses.dataclass
class Caches:
    """The caches of one capacity; each program donates them and hands them to the next."""

    target: KVCache
    draft: Any

    @classmethod
    def random(cls, params: Params, drafter: str, batch: int, capacity: int) -> Caches:
        target = make_random_cache(params.spec.target, batch, capacity, params.dtype)
        return cls(target, make_random_draft(params, drafter, batch, capacity))


@dataclasses.dataclass(frozen=True)
class CompiledPiece:
    """A compiled piece.

    Attributes:
      name: one of `PIECES`, `ar`, `round` or `forced`.
      config: config of the state.
      call: state -> (state, result).
      times: number of repetitions in a call.
      works: functions context -> Work, one for every part with its own floor; empty if bytes do
        not bound its time.
      kernels: number of kernels per repetition.
      tokens: tokens committed per call and sequence, if acceptance is replayed.
      steps: draft steps after the root's that `draft` took, if trees grow with the drafter.
    """

    name: str
    config: DecodeConfig
    call: Callable[[Any], tuple[Any, Any]]
    times: int
    works: tuple[Callable[[int], Work], ...]
    kernels: int | None
    compile_seconds: float
    tokens: int | None = None
    steps: int | None = None


def count_slack(params: Params, method: TreeMethod, widths: Sequence[int], platform: str) -> int:
    """Count cache rows beyond the longest context: the longest loop's commits and one more path."""
    large, _, rounds = TIMES[platform]
    longest = max(make_plan(params.spec, make_tree_config(method, rows)).longest for rows in widths)
    return (max(large, rounds) + 1) * longest


def compile_ar(
    params: Params, method: TreeMethod, caches: Caches, context: int, platform: str
) -> CompiledPiece:
    """Compile autoregressive decoding in the device loop."""
    batch = caches.target.batch
    works = (_target_work(params, batch, 1),)
    return _compile_rounds(
        "ar", params, make_tree_config(method, 1), caches, context, TIMES[platform][0], works
    )


def compile_cell(
    params: Params,
    method: TreeMethod,
    rows: int,
    caches: Caches,
    context: int,
    platform: str,
    histogram: Sequence[float] | None,
    on_time: Callable[[], bool],
    pieces: Sequence[str] = PIECES,
) -> list[CompiledPiece]:
    """Compile the programs of width `rows`, and run each once.

    Args:
      pieces: those of `PIECES` to compile, from `rank` or `tree` on if not all; with all of them,
        whole rounds as well.

    The last programs are missing if `on_time` says that time is up. A single row has no drafter, so
    only its forward and its commit are compiled.
    """
    config, batch = make_tree_config(method, rows), caches.target.batch
    plan = make_plan(params.spec, config)
    large, small, rounds = TIMES[platform]
    found, works = [], _works(params, config, batch, rows)
    given = root_only(jnp.ones(batch, jnp.int32), 1)
    own = [name for name in pieces if name in list_pieces(plan)]
    for name in own if rows > 1 else ("verify", "commit"):
        if not on_time():
            return found
        if name in ("rank", "tree") and not grows(plan):
            given = make_input(name, params, config, batch)
        times = large if name in _LARGE else small
        known = (works[name],) if name in works else ()
        program, given = _compile_piece(name, params, config, caches, context, times, known, given)
        if name == "draft" and grows(plan):
            program = dataclasses.replace(program, steps=int(given[1]))
        found.append(program)
    if rows > 1 and pieces == PIECES and on_time():
        total = () if grows(plan) else tuple(works.values())
        found.append(_compile_rounds("round", params, config, caches, context, large, total))
        if histogram is not None and on_time():
            lengths = order_histogram(histogram, rounds, plan.longest)
            found.append(
                _compile_rounds("forced", params, config, caches, context, rounds, total, lengths)
            )
    return found


def time_programs(
    params: Params, programs: Sequence[CompiledPiece], caches: Caches, context: int, repeats: int
) -> dict[str, list[float]]:
    """Time every program in turns, see `order_turns`: milliseconds per repetition, `repeats` each."""
    samples: dict[str, list[float]] = {program.name: [] for program in programs}
    for repeat in range(repeats):
        for program in order_turns(programs, 0, repeat):
            seconds, _ = _timed(params, program, caches, context)
            samples[program.name].append(1e3 * seconds / program.times)
    return samples


def _timed(
    params: Params, program: CompiledPiece, caches: Caches, context: int
) -> tuple[float, Any]:
    state = _state(params, program.config, caches, context, program.times)
    (state, result), seconds = time_call(program.call, state)
    _take_back(caches, state)
    return seconds, result


def _state(params, config, caches, context, times):
    return make_state(
        params,
        config,
        caches.target,
        caches.draft,
        context,
        times * make_plan(params.spec, config).longest + 1,
    )


def _take_back(caches: Caches, state) -> None:
    caches.target = state.cache
    caches.draft = caches.draft if state.draft is None else state.draft


def _compile_piece(
    name, params, config, caches, context, times, works, given
) -> tuple[CompiledPiece, Any]:
    request, state = (
        make_request(caches.target.batch),
        _state(params, config, caches, context, times),
    )
    started = time.perf_counter()
    compiled = (
        repeat_piece(name, params, request, config, times)
        .lower(params, request, state, given)
        .compile()
    )
    seconds = time.perf_counter() - started

    def call(state):
        return compiled(params, request, state, given)

    program = CompiledPiece(
        name, config, call, times, works, count_kernels(compiled.as_text()), seconds
    )
    return program, _timed(params, program, caches, context)[1]


def _compile_rounds(
    name, params, config, caches, context, times, works, lengths=None
) -> CompiledPiece:
    request, state = (
        make_request(caches.target.batch),
        _state(params, config, caches, context, times),
    )
    started = time.perf_counter()
    if lengths is None:
        function, last = run, jnp.int32(times)
    else:
        function, last = run_forced, jnp.asarray(lengths)
    compiled = function.lower(params, request, state, last, config=config).compile()
    seconds = time.perf_counter() - started

    def call(state):
        state = compiled(params, request, state, last)
        return state, state.emitted - 1

    tokens = None if lengths is None else int(lengths.sum())
    program = CompiledPiece(
        name, config, call, times, works, count_kernels(compiled.as_text()), seconds, tokens
    )
    _, committed = _timed(params, program, caches, context)
    if tokens is not None and not np.all(np.asarray(committed) == tokens):
        raise RuntimeError(f"{tokens} tokens were to be committed, {committed} were")
    return program


def _works(
    params: Params, config: DecodeConfig, batch: int, rows: int
) -> dict[str, Callable[[int], Work]]:
    """Return the least bytes and operations of each piece, as functions context -> Work."""
    plan, name = make_plan(params.spec, config), config.drafter
    layers = len(plan.drafter.feature_layers) if plan.drafter else 0
    works = {"verify": _target_work(params, batch, rows)}
    works["commit"] = lambda context: floors.count_commit(
        params, batch=batch, rows=plan.longest, feature_layers=layers
    )
    if plan.drafter is None or grows(plan):  # what further steps read is not counted
        return works
    slots = plan.growth.longest
    works["draft"] = lambda context: floors.count_draft_forward(
        params, name, batch=batch, slots=slots, context=context
    )
    works["rank"] = lambda context: floors.count_ranking(params, batch=batch, slots=slots)
    works["absorb"] = lambda context: floors.count_absorb(
        params, name, batch=batch, rows=plan.longest
    )
    return works


def _target_work(params: Params, batch: int, rows: int) -> Callable[[int], Work]:
    return lambda context: floors.count_target_forward(
        params, batch=batch, rows=rows, context=context
    )
