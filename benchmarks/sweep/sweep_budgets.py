"""`python -m benchmarks sweep`: measure fixed budgets, beams of equal budgets and policies in turn on the
same prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from benchmarks.sweep.cost_kinds import make_cost_kinds
from benchmarks.sweep.family import Family, parse_rule
from benchmarks.sweep.rounds import trace_rounds
from benchmarks.sweep.sweep_summary import summarise_sweep
from jaxspec.bench.measure.decodes import Run, time_decodes
from jaxspec.bench.measure.methods import Method
from jaxspec.bench.report.summary import describe_environment
from jaxspec.costs.roofline import PeakRates
from jaxspec.costs.roofline_fit import EMA
from jaxspec.costs.round_costs import RoundCosts
from jaxspec.io.text.prompt_files import LabelledPrompt
from jaxspec.policies.bastion.controller import make_bastion
from jaxspec.tuner.calibrate.by_rows import timed
from jaxspec.tuner.calibrate.round_clock import plan_rounds


def sweep_budgets(
    params,
    prompts: Sequence[LabelledPrompt],
    family: Family,
    *,
    temperatures: Sequence[float] = (0.0,),
    repeats: int = 3,
    widths: Sequence[int] | None = None,
    device: PeakRates | None = None,
    options: dict[str, Any] | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Measure a family of methods; return a report ready for JSON.

    Fixed budgets, beams and policies take turns within a prompt, and drift of the machine between
    repeats is divided out. Fixed budgets and beams are compiled only for their own number of rows,
    as in normal use. A policy keeps what it learned from prompt to prompt.

    Args:
      widths, device: see `benchmarks.sweep.cost_kinds.make_cost_kinds`.
      options: keyword arguments of `jaxspec.decode` for all methods.

    Returns:
      `device`, `versions`, `dtype`, `options`, `repeats`, `prompts` (the domain of each) and
      `temperatures`, a list of what `summarise_sweep` returns for each, with its `temperature`,
      `compile_seconds` {method: s} and `tables`, the costs of rounds by their kind.
    """
    found, settings = [], {"repeats": repeats, "progress": progress}
    settings |= {"widths": widths, "device": device}
    for temperature in temperatures:
        at = dict(options or {}) | {"temperature": temperature}
        found.append({"temperature": temperature} | _at(params, prompts, family, at, **settings))
    about = {
        "options": dict(options or {}),
        "repeats": repeats,
        "prompts": [prompt.domain for prompt in prompts],
    }
    return describe_environment(params) | about | {"temperatures": found}


def _at(
    params,
    prompts,
    family: Family,
    options: dict[str, Any],
    *,
    repeats: int,
    widths: Sequence[int] | None,
    device: PeakRates | None,
    progress: Callable[[str], None],
) -> dict[str, Any]:
    """Run the sweep at one temperature."""
    progress("measuring the times of rounds")
    costs = {}
    if family.policies:
        settings = {"widths": widths, "device": device}
        settings |= timed(options | family.policies[0].options)
        costs = make_costs_of(params, family, **settings)
    policies = with_policies(family, costs)
    decodes, watch = _watcher()
    methods = (*family.fixed, *family.beams, *policies)
    runs, compiling = time_decodes(
        params, prompts, methods, repeats=repeats, each=watch, options=options, progress=progress
    )
    progress("tracing rounds")
    # A correction by measured times plays no part here.
    rules = [parse_rule(one.options["policy"])[:2] for one in family.policies]
    traced = dict(zip(rules[::-1], policies[::-1], strict=True))
    rounds = [
        one
        for method in reversed(traced.values())
        for one in trace_rounds(params, prompts, method, options)
    ]
    jax.clear_caches()
    progress("")
    tables = {kind or "kept": _plain(one) for kind, one in costs.items()}
    if tables:
        plan = plan_rounds(params, options | family.policies[0].options | {"policy": None})
        tables = {kind: one | {"depth": plan.longest - 1} for kind, one in tables.items()}
    about = {"compile_seconds": compiling, "tables": tables}
    return about | summarise_sweep(runs, decodes, rounds, prompts, family)


def make_costs_of(params, family: Family, **settings: Any) -> dict[str, RoundCosts]:
    """Make the round costs that the rules of a family's policies name, by their kind.

    Args:
      settings: see `benchmarks.sweep.cost_kinds.make_cost_kinds`.
    """
    kinds = {parse_rule(one.options["policy"]).costs for one in family.policies}
    return make_cost_kinds(params, family.drafter, kinds, **settings)


def with_policies(family: Family, costs: dict[str, RoundCosts]) -> list[Method]:
    """Return the policies' methods of a family, with policies in place of their rules."""
    found = []
    for method in family.policies:
        rule = parse_rule(method.options["policy"])
        policy = make_bastion(costs[rule.costs], rule.name, ema=EMA if rule.corrected else 0.0)
        found.append(Method(method.name, method.options | {"policy": policy}))
    return found


def _plain(costs: RoundCosts) -> dict[str, Any]:
    """Return the costs of the compiled widths as JSON values."""
    verify = costs.verify[0, [costs.widths.index(width) for width in costs.compiled]]
    arrays = {"contexts": costs.contexts, "draft": costs.draft, "verify": verify}
    plain = {"widths": list(costs.compiled), "about": costs.about}
    return plain | {name: x.tolist() for name, x in arrays.items()}


def _watcher() -> tuple[list[dict[str, Any]], Callable[[Run, Any], None]]:
    """Return a list, and a callback for `time_decodes` that appends the counts of a policy's state
    after every decode.
    """
    decodes, seen = [], {}

    def watch(run: Run, out) -> None:
        if out.policy is None:
            return
        now = jax.device_get(out.policy.state)
        before = seen.get(run.method, jax.tree.map(np.zeros_like, now))
        seen[run.method] = now
        decodes.append(
            {
                "method": run.method,
                "prompt": run.prompt,
                "repeat": run.repeat,
                "measured": run.decode_seconds,
                "predicted": float(now.predicted - before.predicted),
                "rounds": int(now.rounds - before.rounds),
                "sizes": (now.sizes - before.sizes).tolist(),
            }
        )

    return decodes, watch
