"""The whole benchmark: timed decodes, a round split into phases, drafters' costs, the report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from jaxspec.bench.measure.conversations import ask_conversations
from jaxspec.bench.measure.decodes import Run, check_prompts, group_methods, time_decodes
from jaxspec.bench.measure.methods import UNCOUPLED, Method, attach_policies
from jaxspec.bench.measure.phases import time_phases
from jaxspec.bench.report.summary import describe_environment, summarise
from jaxspec.call.options import group_options
from jaxspec.call.session import prepare
from jaxspec.core.params import Params
from jaxspec.io.text.prompt_files import LabelledPrompt
from jaxspec.round.plan import drafter_forwards, make_plan


def benchmark(
    params: Params,
    prompts: Sequence[LabelledPrompt],
    methods: Sequence[Method],
    *,
    repeats: int = 3,
    options: dict[str, Any] | None = None,
    temperatures: Sequence[float] | None = None,
    costs: dict[str, dict[str, float]] | None = None,
    with_profile: bool = True,
    progress: Callable[[str], None] = lambda line: None,
    keep: Callable[
        [float, list[LabelledPrompt], list[Run]], None
    ] = lambda temperature, prompts, runs: None,
) -> dict[str, Any]:
    """Measure `methods` (the first is `ar`) on `prompts`; return a report ready for JSON.

    Methods take turns within groups, see `group_methods`. Speed-ups are relative to the `ar` of the
    same group; the records of `ar` are those of the first group.

    Args:
      options: keyword arguments of `jaxspec.decode` for all methods that do not set them.
      temperatures: temperatures to measure at (None: that of `options`, else 0). At 0 nothing is
        sampled, so an uncoupled method is left out if its coupled twin is measured.
      costs: cost of training each drafter, from `jaxspec.zoo.drafters.training_costs`.
      keep: called with a temperature, its prompts and a group's runs; the report itself keeps only
        sums.

    Returns:
      `device`, `versions`, `dtype`, `options`, `repeats`, `compile_seconds` {method: s}, `drafters`
      {name: {"parameters", "training"}}, and `results`, the flat records of
      `jaxspec.bench.report.summary.summarise`, each with its `temperature`, `drafter` and
      `forwards` (see `jaxspec.round.plan.drafter_forwards`).
    """
    common = dict(options or {})
    temperatures = (common.get("temperature", 0.0),) if temperatures is None else temperatures
    results, compile_seconds = [], dict.fromkeys((method.name for method in methods), 0.0)
    for temperature in temperatures:
        at = common | {"temperature": temperature}
        chosen = attach_policies(
            params, _without_twins(methods) if temperature == 0 else methods, at
        )
        asked = ask_conversations(params, prompts, options=at, progress=progress)
        check_prompts(params, asked, at)
        for number, group in enumerate(group_methods(chosen)):
            runs, seconds = time_decodes(
                params, asked, group, repeats=repeats, options=at, progress=progress
            )
            keep(temperature, asked, [run for run in runs if number == 0 or run.method != "ar"])
            _free()
            progress("timing the phases of a round" if with_profile else "")
            # If the size of rounds varies, no single figure describes a phase.
            fixed = [method for method in group if method.options.get("policy") is None]
            split = time_phases(params, asked, fixed, options=at) if with_profile else None
            _free()
            progress("")
            known = {method.name: _known(params, method, at) for method in group}
            results += [
                {"temperature": temperature} | record | known[record["method"]]
                for record in summarise(runs, asked, split)
                if number == 0 or record["method"] != "ar"
            ]
            compile_seconds |= {
                name: compile_seconds[name] + value for name, value in seconds.items()
            }
    return {
        **describe_environment(params),
        "options": common,
        "repeats": repeats,
        "compile_seconds": compile_seconds,
        "drafters": {name: _drafter(params, name, costs or {}) for name, _ in params.spec.drafters},
        "results": results,
    }


def _without_twins(methods: Sequence[Method]) -> list[Method]:
    """Drop uncoupled methods that have a coupled twin."""
    names = {method.name for method in methods}
    twins = {name + UNCOUPLED for name in names}
    return [method for method in methods if method.name not in twins]


def _known(params: Params, method: Method, options: dict[str, Any]) -> dict[str, Any]:
    """Return the facts about a method that are known before it runs."""
    config = prepare(params, [0], **group_options(**{**options, **method.options})).config
    drafter = None if config.drafter == "ar" else config.drafter
    return {
        "drafter": drafter,
        "forwards": drafter_forwards(make_plan(params.spec, config), config, params.spec),
    }


def _drafter(params: Params, name: str, costs: dict[str, dict[str, float]]) -> dict[str, Any]:
    """Return a drafter's size, without the target's embeddings and projections, and its training
    cost.
    """
    weights = params.drafter(name).get("params", {})
    return {
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(weights)),
        "training": costs.get(name),
    }


def _free() -> None:
    """Drop compiled programs, since many of them exhaust a process's memory maps."""
    jax.clear_caches()
