"""Timed decodes: methods interleaved prompt by prompt, compilation kept out of every figure."""

from __future__ import annotations

import dataclasses
import functools
import math
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import jaxspec
from jaxspec.bench.methods import Method
from jaxspec.bench.prompts import Prompt
from jaxspec.engine.compilations import compilations

_ATTEMPTS = 4


@dataclasses.dataclass(frozen=True)
class Run:
    """One timed decode.

    Attributes:
      method: name. prompt: index into the prompts. repeat: 0, 1, …
      tokens: generated ids.
      rounds, drafted, accept_hist: as in `jaxspec.Stats`.
      prefill_seconds, decode_seconds: wall-clock, compilation excluded; the first token belongs to
        the prefill.
      round_tokens: of each round in order, the bonus included.
    """

    method: str
    prompt: int
    repeat: int
    tokens: tuple[int, ...]
    rounds: int
    drafted: int
    accept_hist: tuple[int, ...]
    prefill_seconds: float
    decode_seconds: float
    round_tokens: tuple[int, ...] = ()


def measure(
    params,
    prompts: Sequence[Prompt],
    methods: Sequence[Method],
    *,
    repeats: int = 3,
    options: dict[str, Any] | None = None,
    progress: Callable[[str], None] = lambda line: None,
    each: Callable[[Run, Any], None] = lambda run, out: None,
) -> tuple[list[Run], dict[str, float]]:
    """Decode every prompt with every method `repeats` times.

    Methods take turns within a prompt, see `in_turn`, so that drift of the machine (clock,
    temperature, other load) falls on all of them alike. A decode during which anything was compiled
    is not counted but run again. A method with a policy goes on with what its policy learned from
    the decodes before.

    Args:
      params: from `jaxspec.load`.
      options: keyword arguments of `jaxspec.decode` common to all methods that do not set them.
      progress: called with a line of text per prompt.
      each: called with every run and the `Output` that it was made from.

    Returns:
      (runs, seconds spent on compilation per method: first calls' wall-clock beyond that of the
      same call repeated).

    Raises:
      ValueError: `repeats` below 1, or as `jaxspec.decode`.
    """
    if repeats < 1:
        raise ValueError(f"repeats is {repeats}: give at least 1")
    runs, compile_seconds = [], dict.fromkeys((method.name for method in methods), 0.0)
    policies = {
        method.name: {"policy": method.options["policy"]}
        for method in methods
        if method.options.get("policy")
    }
    for index, prompt in enumerate(prompts):
        progress(f"prompt {index + 1} of {len(prompts)} ({prompt.domain})")
        for repeat in range(repeats):
            for method in in_turn(methods, index, repeat):
                settings = (options or {}) | method.options | policies.get(method.name, {})
                out, compiling = without_compilation(
                    functools.partial(jaxspec.decode, params, prompt.content, **settings)
                )
                if out.policy is not None:
                    policies[method.name] = {"policy": out.policy}
                compile_seconds[method.name] += compiling
                runs.append(run_of(method.name, index, repeat, out))
                each(runs[-1], out)
    return runs, compile_seconds


def in_turn(methods: Sequence[Any], prompt: int, repeat: int) -> list[Any]:
    """The order in which methods, or whatever is compared, take their turns in a repeat.

    Each pair of repeats goes there and back, and begins one further than the pair before it. So
    whatever drifts falls on all alike, and none always follows the same other.
    """
    shift = (prompt + repeat // 2) % len(methods)
    return [*methods[shift:], *methods[:shift]][:: -1 if repeat % 2 else 1]


def drift_of(runs: Sequence[Run]) -> dict[tuple[int, int], float]:
    """How slow the machine was, {(prompt, repeat): factor}, against the prompt's median repeat: of
    all methods' times together.

    Decodes of one repeat follow each other within seconds, repeats do not: what slows a whole
    repeat is the machine's doing.
    """
    taken: dict[tuple[int, int], list[float]] = defaultdict(list)
    for run in runs:
        taken[run.prompt, run.repeat].append(math.log(max(run.decode_seconds, 1e-9)))
    level = {key: math.exp(statistics.fmean(logs)) for key, logs in taken.items()}
    usual = {
        prompt: statistics.median(x for (own, _), x in level.items() if own == prompt)
        for prompt, _ in level
    }
    return {key: x / usual[key[0]] for key, x in level.items()}


def steadied(run: Run, drift: dict[tuple[int, int], float]) -> Run:
    """The run with its times as on a machine of even speed; ratios of times within a repeat stay as
    they are.
    """
    factor = drift[run.prompt, run.repeat]
    return dataclasses.replace(
        run,
        prefill_seconds=run.prefill_seconds / factor,
        decode_seconds=run.decode_seconds / factor,
    )


def run_of(method: str, prompt: int, repeat: int, out) -> Run:
    """The figures of a decode."""
    stats = out.stats
    counts = (stats.rounds, stats.drafted, tuple(stats.accept_hist))
    seconds = stats.prefill_seconds, stats.decode_seconds
    return Run(
        method,
        prompt,
        repeat,
        tuple(out.tokens),
        *counts,
        *seconds,
        tuple(out.per_round.tokens.tolist()),
    )


def without_compilation(call: Callable[[], Any]) -> tuple[Any, float]:
    """The result of a call that compiled nothing, and the extra seconds that earlier attempts spent
    compiling.
    """
    attempts = []
    for _ in range(_ATTEMPTS):
        before, start = compilations(), time.perf_counter()
        out = call()
        seconds = time.perf_counter() - start
        if compilations() == before:
            return out, sum(max(attempt - seconds, 0.0) for attempt in attempts)
        attempts.append(seconds)
    raise RuntimeError(
        f"the same decode compiled again in each of {_ATTEMPTS} calls: timings would include compilation"
    )
