"""BASTION's comparisons by speed: with beams, budgets, kinds of costs and published methods."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.sweep.family import default_budgets, make_family
from benchmarks.sweep.figures import MEAN, average_domains, compare_pairs, reduce_runs
from benchmarks.sweep.sweep_budgets import make_costs_of, sweep_budgets, with_policies
from benchmarks.sweep.sweep_plot import parse_budget
from jaxspec.bench.measure.decodes import estimate_drift, remove_drift, time_decodes
from jaxspec.bench.measure.methods import parse_methods
from jaxspec.bench.report.summary import describe_environment, summarise
from jaxspec.costs.roofline import PeakRates
from jaxspec.io.text.prompt_files import LabelledPrompt
from jaxspec.tuner.calibrate.by_rows import timed

METHOD = "dflash-best_first"
# The paper's names of costs and corrections, and the rules of a sweep that they are.
CORRECTIONS = {
    "static": "bastion-paper+fit",
    "EMA": "bastion-paper+bare+ema",
    "EMA + calibration": "bastion-paper+fit+ema",
    "bare": "bastion-paper+bare",
    "measured": "bastion-paper+measured",
}
# Baselines of the paper's table 1, and rules of the controller on the same drafter.
PUBLISHED = "dflash-chain@16,eagle3-dynamic@60/d7/w10"
RULES = ("bastion-paper+fit", "bastion-first-decrease+fit", "bastion-code+fit", "best+measured")
# Rows beyond which the paper sees saturation.
SATURATED = 64


def compare_beams(
    params,
    prompts: Sequence[LabelledPrompt],
    *,
    method: str = METHOD,
    budgets: Sequence[int] = (17, 61),
    **settings: Any,
) -> dict[str, Any]:
    """Compare best-first trees with beams of as many rows by acceptance and speed (figure 8).

    Args:
      budgets: rows, the root included; the paper's beams of one and of four nodes a depth.
      settings: see `benchmarks.sweep.sweep_budgets.sweep_budgets`.

    Returns:
      A sweep's report; the ratios are in `best_first_over_beam`.
    """
    family = make_family(method, budgets, max(budgets), beam=True)
    return sweep_budgets(params, prompts, family, **settings)


def measure_saturation(
    params,
    prompts: Sequence[LabelledPrompt],
    *,
    method: str = METHOD,
    budgets: Sequence[int] = default_budgets(1024),
    **settings: Any,
) -> dict[str, Any]:
    """Measure fixed budgets up to 1,024 rows (figures 2 and 4).

    Args:
      settings: see `sweep_budgets`.

    Returns:
      A sweep's report, with `saturation` for each temperature: `rows`, `speedup` (mean over the
      domains) and `length` (over all prompts) of each budget; `peak`, the fastest one; and
      `beyond`, the best speed-up of more than `SATURATED` rows over that of `SATURATED` or the next
      smaller budget (None if no budget is larger).
    """
    family = make_family(method, budgets, max(budgets))
    report = sweep_budgets(params, prompts, family, **settings)
    for one in report["temperatures"]:
        one["saturation"] = find_saturation(one)
    return report


def find_saturation(one: dict[str, Any]) -> dict[str, Any]:
    """Describe how speed saturates in one temperature's report, see `measure_saturation`."""
    speeds = {parse_budget(r["method"]): r["speedup"] for r in one["averages"]}
    lengths = {
        parse_budget(r["method"]): r["mean_acceptance_length"]
        for r in one["results"]
        if r["domain"] == "all"
    }
    rows = sorted(speeds)
    below, above = ([n for n in rows if (n > SATURATED) == more] for more in (False, True))
    return {
        "rows": rows,
        "speedup": [speeds[n] for n in rows],
        "length": [lengths[n] for n in rows],
        "peak": max(rows, key=lambda n: speeds[n]),
        "beyond": max(speeds[n] for n in above) / speeds[below[-1]] if above else None,
    }


def compare_corrections(
    params,
    prompts: Sequence[LabelledPrompt],
    *,
    method: str = METHOD,
    budget: int = 64,
    budgets: Sequence[int] = (1, 16),
    names: Sequence[str] = tuple(CORRECTIONS),
    **settings: Any,
) -> dict[str, Any]:
    """Compare static, running and calibrated costs by speed (the ablation of EMA).

    Args:
      budget: most rows of a round.
      budgets: fixed budgets to compare with.
      names: of `CORRECTIONS`; the first is what others are divided by.
      settings: see `sweep_budgets`.

    Returns:
      A sweep's report, with `names` {method: name}; the ratios to the first are in
      `over_first_policy`, errors of predicted times in `prediction`.
    """
    rules = [CORRECTIONS[name] for name in names]
    family = make_family(method, budgets, budget, rules)
    report = sweep_budgets(params, prompts, family, **settings)
    named = zip([policy.name for policy in family.policies], names, strict=True)
    return report | {"names": dict(named)}


def compare_published(
    params,
    prompts: Sequence[LabelledPrompt],
    *,
    methods: str = PUBLISHED,
    method: str = METHOD,
    budget: int = 64,
    rules: Sequence[str] = RULES,
    widths: Sequence[int] | None = None,
    device: PeakRates | None = None,
    repeats: int = 3,
    options: dict[str, Any] | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Compare the controller on a drafter with published methods in one table (table 1).

    Args:
      methods: names of the published ones, as for `jaxspec bench`.
      method: drafter and builder of the controller.
      budget: most rows of its rounds.
      rules: see `benchmarks.sweep.family.parse_rule`; the first is BASTION.
      widths, device: see `benchmarks.sweep.cost_kinds.make_cost_kinds`.
      options: keyword arguments of `jaxspec.decode`.

    Returns:
      `results` and `averages` as of a sweep, and `pairs`: BASTION over each other method, and each
      published one over the next (`benchmarks.sweep.figures.compare_pairs`).
    """
    given = dict(options or {})
    family = make_family(method, (1,), budget, rules)
    published = parse_methods(methods, budget=budget, spec=params.spec)
    progress("measuring the times of rounds")
    settings = {"widths": widths, "device": device} | timed(given | family.policies[0].options)
    ours = with_policies(family, make_costs_of(params, family, **settings))
    runs, compiling = time_decodes(
        params, prompts, (*published, *ours), repeats=repeats, options=given, progress=progress
    )
    progress("")
    drift = estimate_drift(runs)
    runs = [remove_drift(run, drift) for run in runs]
    t, names = reduce_runs(runs, prompts), [one.name for one in published[1:]]
    first, *others = [one.name for one in ours]
    pairs = [(first, other) for other in (*names, *others)]
    pairs += list(zip(names, names[1:], strict=False))
    return describe_environment(params) | {
        "options": given,
        "repeats": repeats,
        "prompts": [prompt.domain for prompt in prompts],
        "compile_seconds": compiling,
        "results": summarise(runs, prompts),
        "averages": [one for one in average_domains(t) if one["domain"] == MEAN],
        "pairs": compare_pairs(t, pairs),
    }
