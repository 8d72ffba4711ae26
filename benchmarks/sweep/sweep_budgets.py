"""`python -m benchmarks sweep`: measure fixed budgets, beams of equal budgets and policies in turn on the
same prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from benchmarks.sweep.family import EMA, Family
from benchmarks.sweep.rounds import trace_rounds
from benchmarks.sweep.sweep_summary import summarise_sweep
from jaxspec.bench.measure.decodes import Run, time_decodes
from jaxspec.bench.measure.methods import Method
from jaxspec.bench.report.summary import describe_environment
from jaxspec.costs.round_costs import RoundCosts
from jaxspec.io.text.prompt_files import LabelledPrompt
from jaxspec.policies.bastion.controller import make_bastion
from jaxspec.tuner.calibrate.by_rows import calibrate, measured, timed
from jaxspec.tuner.calibrate.round_clock import plan_rounds

# Weight of a decode in the running mean by which a policy corrects its times.
EMA_WEIGHT = 0.1


def sweep_budgets(
    params,
    prompts: Sequence[LabelledPrompt],
    family: Family,
    *,
    temperatures: Sequence[float] = (0.0,),
    repeats: int = 3,
    widths: Sequence[int] | None = None,
    options: dict[str, Any] | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Measure a family of methods; return a report ready for JSON.

    Fixed budgets and policies take turns within a prompt, and drift of the machine between repeats
    is divided out. Beams decode afterwards, once, since only their acceptance is compared. Fixed
    budgets are compiled only for their own number of rows, as in normal use. A policy keeps what it
    learned from prompt to prompt.

    Args:
      widths: rows that verification under a policy is compiled for, ascending from 1 to its budget;
        round times are then measured again (None: use the kept times, see
        `jaxspec.tuner.calibrate.by_rows`).
      options: keyword arguments of `jaxspec.decode` for all methods.

    Returns:
      `device`, `versions`, `dtype`, `options`, `repeats`, `prompts` (the domain of each) and
      `temperatures`, a list of what `summarise_sweep` returns for each, with its `temperature`,
      `compile_seconds` {method: s} and the `table` of round times.
    """
    found, settings = [], {"repeats": repeats, "widths": widths, "progress": progress}
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
    params, prompts, family: Family, options: dict[str, Any], *, repeats, widths, progress
) -> dict[str, Any]:
    """Run the sweep at one temperature."""
    progress("measuring the times of rounds")
    table = _table(params, family.policies[0], options, widths) if family.policies else None
    policies, (decodes, watch) = [_with_policy(one, table) for one in family.policies], _watcher()
    common = {"options": options, "progress": progress}
    runs, compiling = time_decodes(
        params, prompts, (*family.fixed, *policies), repeats=repeats, each=watch, **common
    )
    progress("tracing rounds")
    # Policies with equal settings differ only in measured times, which are not used here.
    traced = {method.options["policy"].config: method for method in reversed(policies)}
    rounds = [
        one
        for method in reversed(traced.values())
        for one in trace_rounds(params, prompts, method, options)
    ]
    jax.clear_caches()
    # Add `ar`, the reference for their tokens.
    beams = (family.fixed[0], *family.beams) if family.beams else ()
    others = time_decodes(params, prompts, beams, repeats=1, **common)[0] if beams else []
    jax.clear_caches()
    progress("")
    about = {"compile_seconds": compiling, "table": table and _plain(table)}
    if table:
        plan = plan_rounds(params, options | family.policies[0].options | {"policy": None})
        about["table"]["depth"] = plan.longest - 1
    return about | summarise_sweep(runs, others, decodes, rounds, prompts, family)


def _table(
    params, method: Method, options: dict[str, Any], widths: Sequence[int] | None
) -> RoundCosts:
    settings = timed(options | method.options)
    if widths is None:
        return measured(params, method.options["drafter"], **settings)
    return calibrate(params, method.options["drafter"], widths=widths, **settings)


def _with_policy(method: Method, table: RoundCosts) -> Method:
    rule = method.options["policy"]
    policy = make_bastion(
        table, rule.removesuffix(EMA), running=EMA_WEIGHT if rule.endswith(EMA) else 0.0
    )
    return Method(method.name, method.options | {"policy": policy})


def _plain(table: RoundCosts) -> dict[str, Any]:
    arrays = {"contexts": table.contexts, "draft": table.draft, "verify": table.verify[0]}
    return {"widths": list(table.widths)} | {name: x.tolist() for name, x in arrays.items()}


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
