"""Timed decodes: methods take turns prompt by prompt, and no figure includes compilation."""

from __future__ import annotations

import dataclasses
import functools
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import jaxspec
from jaxspec.bench.measure.methods import Method
from jaxspec.call.options import group_options
from jaxspec.call.output import Output
from jaxspec.call.session import prepare
from jaxspec.core.params import Params
from jaxspec.core.runtime.clock import order_turns, repeat_until_compiled
from jaxspec.io.text.prompt_files import LabelledPrompt
from jaxspec.policies.registry import AUTOMATIC
from jaxspec.tuner.tuner import process_tuner


@dataclasses.dataclass(frozen=True)
class Run:
    """One timed decode.

    Attributes:
      method: name of the method.
      prompt: index into the prompts.
      repeat: index of the repeat: 0, 1, …
      tokens: generated ids.
      rounds: see `jaxspec.Stats`.
      drafted: see `jaxspec.Stats`.
      accept_hist: see `jaxspec.Stats`.
      prefill_seconds: wall-clock seconds without compilation, the first token included.
      decode_seconds: wall-clock seconds without compilation, after the first token.
      round_tokens: tokens of each round in order, the bonus included.
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


def time_decodes(
    params: Params,
    prompts: Sequence[LabelledPrompt],
    methods: Sequence[Method],
    *,
    repeats: int = 3,
    options: dict[str, Any] | None = None,
    progress: Callable[[str], None] = lambda line: None,
    each: Callable[[Run, Any], None] = lambda run, out: None,
) -> tuple[list[Run], dict[str, float]]:
    """Decode every prompt with every method `repeats` times.

    Methods take turns within a prompt, see `order_turns`, so that drift of the machine (clock,
    temperature, other load) affects all of them alike. A decode that compiled anything is repeated
    and not counted. A policy keeps what it learned from one decode to the next.

    Args:
      params: from `jaxspec.load`.
      options: keyword arguments of `jaxspec.decode` for all methods that do not set them.
      progress: called with a line of text per prompt.
      each: called with every run and its `Output`.

    Returns:
      (runs, {method: seconds of compilation}, the time by which first calls exceeded repeated
      calls).

    Raises:
      ValueError: `repeats` is below 1, or as `jaxspec.decode`.
    """
    if repeats < 1:
        raise ValueError(f"repeats is {repeats}: give at least 1")
    runs, compile_seconds = [], dict.fromkeys((method.name for method in methods), 0.0)
    policies = {
        method.name: {"policy": method.options["policy"]}
        for method in methods
        if method.options.get("policy") not in (None, AUTOMATIC)
    }
    for index, prompt in enumerate(prompts):
        progress(f"prompt {index + 1} of {len(prompts)} ({prompt.domain})")
        for repeat in range(repeats):
            for method in order_turns(methods, index, repeat):
                settings = (options or {}) | method.options | policies.get(method.name, {})
                out, compiling = repeat_until_compiled(
                    functools.partial(
                        jaxspec.decode,
                        params,
                        prompt.content,
                        tuner=process_tuner(),  # so that weights lie alike for all methods
                        **group_options(**settings),
                    )
                )
                # The automatic policy itself remembers what it learned.
                if out.policy is not None and method.name in policies:
                    policies[method.name] = {"policy": out.policy}
                compile_seconds[method.name] += compiling
                runs.append(make_run(method.name, index, repeat, out))
                each(runs[-1], out)
    return runs, compile_seconds


def estimate_drift(runs: Sequence[Run]) -> dict[tuple[int, int], float]:
    """Estimate how slow the machine was in each repeat: {(prompt, repeat): factor}.

    The factor compares all methods' times of a repeat with the prompt's median repeat. The decodes
    of one repeat follow each other within seconds, but repeats do not. A slow repeat as a whole is
    therefore due to the machine.
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


def remove_drift(run: Run, drift: dict[tuple[int, int], float]) -> Run:
    """Divide a run's times by its repeat's factor; ratios within a repeat stay as they are."""
    factor = drift[run.prompt, run.repeat]
    return dataclasses.replace(
        run,
        prefill_seconds=run.prefill_seconds / factor,
        decode_seconds=run.decode_seconds / factor,
    )


def make_run(method: str, prompt: int, repeat: int, out: Output) -> Run:
    """Make the record of a decode."""
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


def group_methods(methods: Sequence[Method], size: int = 12) -> list[list[Method]]:
    """Split methods into groups of at most `size`, each with the first one, `ar`, as its baseline.

    Methods of a group take turns, so all their programs are alive at once. The programs of forty
    methods exhaust a process's memory maps.
    """
    first, others = methods[0], list(methods[1:])
    return [[first, *others[i : i + size]] for i in range(0, len(others), size)] or [[first]]


def check_prompts(
    params: Params, prompts: Sequence[LabelledPrompt], options: dict[str, Any]
) -> None:
    """Refuse a prompt that cannot be decoded, before anything is timed.

    Raises:
      ValueError: as `jaxspec.decode`; the message names the prompt.
    """
    for number, prompt in enumerate(prompts, 1):
        try:
            prepare(params, prompt.content, **group_options(**options | {"drafter": "ar"}))
        except ValueError as error:
            raise ValueError(f"prompt {number}, of {prompt.domain}: {error}") from None
