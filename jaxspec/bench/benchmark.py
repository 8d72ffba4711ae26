"""A whole benchmark: timed decodes, the split of a round, what drafters cost, and the report of it
all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from jaxspec.bench.measure import Run, measure
from jaxspec.bench.methods import UNCOUPLED, Method, with_policies
from jaxspec.bench.profile import profile
from jaxspec.bench.prompts import Prompt
from jaxspec.bench.report.summary import environment, summarise
from jaxspec.bench.turns import ask_in_turns
from jaxspec.engine.plan import drafter_forwards, make_plan
from jaxspec.engine.session import prepare


def benchmark(
    params,
    prompts: Sequence[Prompt],
    methods: Sequence[Method],
    *,
    repeats: int = 3,
    options: dict[str, Any] | None = None,
    temperatures: Sequence[float] | None = None,
    costs: dict[str, dict[str, float]] | None = None,
    with_profile: bool = True,
    progress: Callable[[str], None] = lambda line: None,
    keep: Callable[[float, list[Prompt], list[Run]], None] = lambda temperature, prompts, runs: (
        None
    ),
) -> dict[str, Any]:
    """Measure `methods` (the first is `ar`) on `prompts`, ready for JSON.

    Methods take turns within groups, see `groups`; speed-ups are over the `ar` of the same group,
    and its records those of the first.

    Args:
      options: keyword arguments of `jaxspec.decode` common to all methods that do not set them.
      temperatures: everything is measured at each (None: at that of `options`, else 0). At 0
        nothing is drawn, so uncoupled methods are left out there if they have a coupled twin.
      costs: what training each drafter took, from `jaxspec.zoo.checkpoint.training_costs`.
      keep: called with a temperature, the prompts as asked there and a group's runs of them, which
        the report reduces to sums.

    Returns:
      `device`, `versions`, `dtype`, `options`, `repeats`, `compile_seconds` {method: s}, `drafters`
      {name: {"parameters", "training"}}, and `results`, the flat records of
      `jaxspec.bench.summarise`, each with its `temperature`, `drafter` and `forwards` (see
      `jaxspec.engine.plan.drafter_forwards`).
    """
    common = dict(options or {})
    temperatures = (common.get("temperature", 0.0),) if temperatures is None else temperatures
    results, compile_seconds = [], dict.fromkeys((method.name for method in methods), 0.0)
    for temperature in temperatures:
        at = common | {"temperature": temperature}
        chosen = with_policies(params, _without_twins(methods) if temperature == 0 else methods, at)
        asked = ask_in_turns(params, prompts, options=at, progress=progress)
        check_prompts(params, asked, at)
        for number, group in enumerate(groups(chosen)):
            runs, seconds = measure(
                params, asked, group, repeats=repeats, options=at, progress=progress
            )
            keep(temperature, asked, [run for run in runs if number == 0 or run.method != "ar"])
            _free()
            progress("timing the phases of a round" if with_profile else "")
            # The phases of rounds whose size varies are not one figure each.
            fixed = [method for method in group if method.options.get("policy") is None]
            split = profile(params, asked, fixed, options=at) if with_profile else None
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
        **environment(params),
        "options": common,
        "repeats": repeats,
        "compile_seconds": compile_seconds,
        "drafters": {name: _drafter(params, name, costs or {}) for name, _ in params.spec.drafters},
        "results": results,
    }


def groups(methods: Sequence[Method], size: int = 12) -> list[list[Method]]:
    """Groups of at most `size` methods and the first, `ar`, which every group is compared with.

    Methods of a group take turns, so their programs are all alive at once; those of forty exhaust a
    process's memory maps.
    """
    first, others = methods[0], list(methods[1:])
    return [[first, *others[i : i + size]] for i in range(0, len(others), size)] or [[first]]


def check_prompts(params, prompts: Sequence[Prompt], options: dict[str, Any]) -> None:
    """Refuse a prompt that cannot be decoded before the first one is timed.

    Raises:
      ValueError: as `jaxspec.decode`, with the prompt's place.
    """
    for number, prompt in enumerate(prompts, 1):
        try:
            prepare(params, prompt.content, **options | {"method": "ar"})
        except ValueError as error:
            raise ValueError(f"prompt {number}, of {prompt.domain}: {error}") from None


def _without_twins(methods: Sequence[Method]) -> list[Method]:
    """The methods without those that another is the coupled twin of."""
    names = {method.name for method in methods}
    twins = {name + UNCOUPLED for name in names}
    return [method for method in methods if method.name not in twins]


def _known(params, method: Method, options: dict[str, Any]) -> dict[str, Any]:
    """What a method's settings say before it is run."""
    config = prepare(params, [0], **{**options, **method.options}).config
    drafter = None if config.method == "ar" else config.method
    return {
        "drafter": drafter,
        "forwards": drafter_forwards(make_plan(params.spec, config), config, params.spec),
    }


def _drafter(params, name: str, costs: dict[str, dict[str, float]]) -> dict[str, Any]:
    """Size of a drafter, embeddings and output projections of the target not counted, and its
    training.
    """
    weights = params.drafter(name).get("params", {})
    return {
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(weights)),
        "training": costs.get(name),
    }


def _free() -> None:
    """Drop compiled programs: those of many methods exhaust the memory maps that a process may
    hold.
    """
    jax.clear_caches()
