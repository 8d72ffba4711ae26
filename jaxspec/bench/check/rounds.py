"""Time rounds against their floors, and prefills, at published sizes with random weights."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.bench.check.shared_target import describe_own
from jaxspec.bench.latency.floors import (
    Work,
    count_absorb,
    count_draft_forward,
    count_target_forward,
    floor_seconds,
)
from jaxspec.bench.measure.methods import parse_methods
from jaxspec.call.options import group_options
from jaxspec.call.session import Session, matmul_precision, prepare, run_prefill
from jaxspec.call.stream import stream_rounds
from jaxspec.core.params import Params
from jaxspec.round.loop import run
from jaxspec.round.plan import make_plan
from jaxspec.tuner.tuner import process_tuner

REPEATS = 5


class Setting(NamedTuple):
    """A kind of round.

    Attributes:
      name: in reports.
      method: as in `jaxspec bench --methods`.
      options: further options of `jaxspec.decode`.
      batch: number of sequences.
    """

    name: str
    method: str
    options: Mapping[str, Any] = MappingProxyType({})
    batch: int = 1


_FILTERED = MappingProxyType({"temperature": 0.6, "top_k": 20, "top_p": 0.95})
SETTINGS = (
    Setting("ar", "ar"),
    Setting("best_first@64", "jetspec-best_first@64"),
    Setting("best_first@32", "jetspec-best_first@32"),
    Setting("best_first@64, T=0.6, top_k 20, top_p 0.95", "jetspec-best_first@64", _FILTERED),
    Setting("best_first@64, T=1", "jetspec-best_first@64", MappingProxyType({"temperature": 1.0})),
    Setting("expand@64", "jetspec-expand@64"),
    Setting("eagle3-dynamic@64", "eagle3-dynamic@64"),
    Setting("dspark-lattice@64", "dspark-lattice@64"),
    Setting("best_first@32, batch 8", "jetspec-best_first@32", batch=8),
    Setting("ar, batch 8", "ar", batch=8),
    Setting("default", "default"),
)
# The kind of round that is streamed and profiled.
USUAL = SETTINGS[1]


def measure_rounds(
    params: Params,
    setting: Setting,
    *,
    context: int,
    rounds: int,
    rates: tuple[float, float] | None,
) -> dict[str, Any]:
    """Time rounds as `jaxspec.decode` runs them.

    With random weights hardly a drafted token is accepted, which does not change what a round
    costs.

    Args:
      params: random weights, see `jaxspec.bench.architectures`. Devices may share the target.
      context: tokens of the prompts, which are random.
      rounds: of a sample.
      rates: measured bytes and operations per second of one device; None: there is no floor.

    Returns:
      `ms` per round and `quartiles` over samples; `floor_ms` and `share_of_floor` in percent, None
      where the floor is not known; `dispatch_ms`, what a call takes without a round;
      `prefill_seconds` and `compile_seconds` of both programs. A floor is one device's, without
      what devices exchange.
    """
    session = prepare_rounds(params, setting, context, rounds)
    with matmul_precision(session):
        state, prefill_compile = _timed(lambda: run_prefill(session))
        state, prefill = _timed(lambda: run_prefill(session))
        state, compile_seconds = _timed(lambda: _run(session, state, 0))
        empty, samples = [], []
        for _ in range(REPEATS):
            state, seconds = _timed(lambda state=state: _run(session, state, 0))
            empty.append(seconds)
            before = int(np.max(state.rounds))
            state, seconds = _timed(lambda state=state: _run(session, state, rounds))
            samples.append((seconds, int(np.max(state.rounds)) - before))
    call = float(np.median(empty))
    each = [1e3 * (seconds - call) / max(count, 1) for seconds, count in samples]
    floor = _find_floor(params, session, context, setting.batch, rates)
    ms = float(np.median(each))
    return {
        "ms": ms,
        "quartiles": np.percentile(each, [25, 75]).tolist(),
        "floor_ms": floor,
        "share_of_floor": None if floor is None else 100 * floor / ms,
        "dispatch_ms": 1e3 * call,
        "prefill_seconds": prefill,
        "compile_seconds": {
            "prefill": max(prefill_compile - prefill, 0.0),
            "rounds": max(compile_seconds - call, 0.0),
        },
    }


def measure_stream(params: Params, *, context: int, rounds: int) -> dict[str, Any]:
    """Time rounds as `jaxspec.stream` runs them, one by one, for `best_first@64`.

    Returns:
      `ms`, the median time between two rounds on the host.
    """
    session = prepare_rounds(params, USUAL, context, rounds)
    for _ in range(2):  # the first compiles
        times = [time.perf_counter() for _ in stream_rounds(session)]
    return {"ms": 1e3 * float(np.median(np.diff(times)))}


def prepare_rounds(params: Params, setting: Setting, context: int, rounds: int) -> Session:
    """Make a session of random prompts with room for all samples of `rounds` rounds."""
    size = params.spec.target.vocab_size
    prompts = np.random.default_rng(0).integers(0, size, (setting.batch, context)).tolist()
    given = prompts if setting.batch > 1 else prompts[0]
    # Room for rounds that commit more than the bonus token, which random drafts seldom do.
    room = 2 * REPEATS * (rounds + 1)
    method = parse_methods(setting.method, budget=0)[-1]
    options = {**method.options, **setting.options}
    options = group_options(ignore_eos=True, **options)
    return process_tuner().prepare(prepare(params, given, max_new_tokens=room, **options))


def _run(session: Session, state: Any, rounds: int) -> Any:
    return run(session.params, session.request, state, jnp.int32(rounds), config=session.config)


def _timed(call: Any) -> tuple[Any, float]:
    began = time.perf_counter()
    result = jax.block_until_ready(call())
    return result, time.perf_counter() - began


def _find_floor(
    params: Params, session: Session, context: int, batch: int, rates: tuple[float, float] | None
) -> float | None:
    """Return the milliseconds of a round's forwards at measured rates; None where they vary."""
    plan, config = make_plan(params.spec, session.config), session.config
    if rates is None or config.policy is not None or plan.in_steps:
        return None
    rows, params = plan.widths[-1], describe_own(params)
    work = [count_target_forward(params, batch=batch, rows=rows, context=context)]
    if plan.drafter is not None:
        slots = params.spec.drafter(config.drafter).depth
        name = config.drafter
        work.append(count_draft_forward(params, name, batch=batch, slots=slots, context=context))
        work.append(count_absorb(params, name, batch=batch, rows=1))
    return 1e3 * sum(floor_seconds(Work(*one), *rates) for one in work)


def measure_prefills(params: Params, batches: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Run prefills of random prompts, the smallest batch first.

    Args:
      batches: lengths of the prompts that run together.

    Returns:
      {"length, length, ...": {"seconds", "compile_seconds", "peak_bytes" (of this process so far,
      weights included; None where the device does not tell)}}.
    """
    size, found = params.spec.target.vocab_size, {}
    for lengths in batches:
        draw = np.random.default_rng(lengths[0]).integers
        prompts = [draw(0, size, length).tolist() for length in lengths]
        given = prompts if len(prompts) > 1 else prompts[0]
        session = process_tuner().prepare(prepare(params, given, max_new_tokens=16, budget=32))
        with matmul_precision(session):
            seconds = []
            for _ in range(3):
                began = time.perf_counter()
                jax.block_until_ready(run_prefill(session))
                seconds.append(time.perf_counter() - began)
        steady = min(seconds[1:])
        found[", ".join(map(str, lengths))] = {
            "seconds": steady,
            "compile_seconds": max(seconds[0] - steady, 0.0),
            "peak_bytes": (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use"),
        }
    return found
