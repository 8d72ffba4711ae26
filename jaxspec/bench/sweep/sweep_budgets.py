"""`jaxspec bench sweep`: fixed budgets, beams of equal budgets and policies, on the same prompts in
turn.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxspec.bench.calibrate import calibrate, measured, timed
from jaxspec.bench.measure.decodes import Run, estimate_drift, remove_drift, time_decodes
from jaxspec.bench.measure.methods import Method, parse_methods
from jaxspec.bench.measure.prompt_files import ALL_DOMAINS, LabelledPrompt
from jaxspec.bench.report.summary import describe_environment, summarise
from jaxspec.bench.sweep.figures import (
    average_domains,
    compare_acceptance,
    compare_hindsight,
    reduce_runs,
)
from jaxspec.bench.sweep.predictions import fit_surrogate, measure_prediction_errors
from jaxspec.bench.sweep.rounds import trace_rounds
from jaxspec.builders import parse_builder
from jaxspec.costs.round_costs import RoundCosts
from jaxspec.policies.bastion.controller import make_bastion
from jaxspec.policies.bastion.size_rules import SIZE_RULES

# What a rule's name ends with for a policy that corrects its times by a running mean, and the
# weight of a decode in it.
EMA, EMA_WEIGHT = "+ema", 0.1
# Budgets between which speed changes little.
SERIES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)


class Family(NamedTuple):
    """Methods that differ in how many rows they verify.

    Attributes:
      drafter: its name.
      fixed: `ar`, whose budget is 1, and the method with every other budget. policies: it with a
        policy of each rule.
      beams: the builder `beam` with the same budgets; none without being asked for.
    """

    drafter: str
    fixed: tuple[Method, ...]
    policies: tuple[Method, ...]
    beams: tuple[Method, ...]


def default_budgets(largest: int) -> tuple[int, ...]:
    """Budgets of the series up to `largest`, which is always among them."""
    return (*(budget for budget in SERIES if budget < largest), largest)


def make_family(
    name: str, budgets: Sequence[int], largest: int, rules: Sequence[str] = (), beam: bool = False
) -> Family:
    """The methods of a sweep; those of `policies` still have their rule's name for a policy.

    Args:
      name: `<drafter>-<builder>[+score][/setting...]`, as for `bench` without budget and policy.
      budgets: rows verified a round, the root included. largest: rows that a policy may verify.
      rules: such as `best`, or `best+ema`, which corrects its predicted times by those that decodes
        took.

    Raises:
      ValueError: a name of none or several drafted methods, of one whose budget is given, or a
        budget below 1.
    """
    parsed = parse_methods(name, budget=largest)[1:]
    if (
        len(parsed) != 1
        or "@" in name
        or parsed[0].options.get("policy")
        or not parse_builder(parsed[0].options["builder"]).spends_budget
    ):
        raise ValueError(
            f"cannot sweep the budgets of {name!r}: give one method without budget and policy, as jetspec-ddtree"
        )
    if not budgets or min(*budgets, largest) < 1:
        raise ValueError(
            f"budgets are {list(budgets)} and {largest}: give numbers of rows, the root included, of at least 1"
        )
    unknown = next((rule for rule in rules if rule.removesuffix(EMA) not in SIZE_RULES), None)
    if unknown is not None:
        raise ValueError(
            f"unknown rule {unknown!r}: choose among {', '.join(SIZE_RULES)}, each also with {EMA}"
        )
    options, (head, slash, settings) = parsed[0].options, parsed[0].name.partition("/")
    drafter, drafted = options["method"], sorted({budget for budget in budgets if budget > 1})

    def sized(base: str, budget: int, **more) -> Method:
        return Method(f"{base}@{budget}{slash}{settings}", options | {"budget": budget} | more)

    policies = (sized(head, largest, policy=rule) for rule in rules)
    return Family(
        drafter=drafter,
        fixed=(Method("ar", {"method": "ar"}), *(sized(head, budget) for budget in drafted)),
        policies=tuple(
            Method(f"{one.name}/{one.options['policy']}", one.options) for one in policies
        ),
        beams=tuple(sized(f"{drafter}-beam", budget, builder="beam") for budget in drafted if beam),
    )


def scramble_drafter(params, drafter: str, seed: int):
    """`params` with the entries of every weight array of a drafter in random order: the sizes of a
    drafter without its sense.

    Raises:
      ValueError: an unknown drafter, or one without weights.
    """
    params.spec.drafter(drafter)
    leaves, structure = jax.tree.flatten(params.drafter(drafter))
    if not leaves:
        raise ValueError(f"{drafter!r} has no weights to scramble: choose a trained drafter")
    keys = jax.random.split(jax.random.key(seed), len(leaves))
    mixed = [
        jax.random.permutation(key, leaf.reshape(-1)).reshape(leaf.shape)
        for key, leaf in zip(keys, leaves, strict=True)
    ]
    return dataclasses.replace(
        params, drafters={**params.drafters, drafter: jax.tree.unflatten(structure, mixed)}
    )


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
    """Measure a family, ready for JSON.

    Fixed budgets and policies take turns within a prompt, and by how much the machine was slower in
    one repeat than in another is divided out. Beams take theirs afterwards, once, for their
    acceptance alone is compared. Fixed budgets decode as anyone would run them: compiled for their
    number of rows alone. What a policy learned goes on from prompt to prompt.

    Args:
      widths: rows that verification under a policy is compiled for, ascending from 1 to its budget;
        its times are then measured anew (None: the times that are kept, see
        `jaxspec.bench.calibrate`).
      options: keyword arguments of `jaxspec.decode` common to all.

    Returns:
      `device`, `versions`, `dtype`, `options`, `repeats`, `prompts` (the domain of each) and
      `temperatures`, a list of what `figures` returns for each, with its `temperature`,
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
    """The sweep of one temperature."""
    progress("measuring the times of rounds")
    table = _table(params, family.policies[0], options, widths) if family.policies else None
    policies, (decodes, watch) = [_with_policy(one, table) for one in family.policies], _watcher()
    common = {"options": options, "progress": progress}
    runs, compiling = time_decodes(
        params, prompts, (*family.fixed, *policies), repeats=repeats, each=watch, **common
    )
    progress("tracing rounds")
    # Policies of equal settings differ in what the clock told them, and no clock runs here.
    traced = {method.options["policy"].config: method for method in reversed(policies)}
    rounds = [
        one
        for method in reversed(traced.values())
        for one in trace_rounds(params, prompts, method, options)
    ]
    jax.clear_caches()
    # Beside `ar`, for the comparison of the tokens.
    beams = (family.fixed[0], *family.beams) if family.beams else ()
    others = time_decodes(params, prompts, beams, repeats=1, **common)[0] if beams else []
    jax.clear_caches()
    progress("")
    about = {"compile_seconds": compiling, "table": table and _plain(table)}
    return about | summarise_sweep(runs, others, decodes, rounds, prompts, family)


def summarise_sweep(
    runs: Sequence[Run],
    beams: Sequence[Run],
    decodes: Sequence[dict[str, Any]],
    rounds: Sequence[dict[str, Any]],
    prompts: Sequence[LabelledPrompt],
    family: Family,
) -> dict[str, Any]:
    """What the runs of one temperature say.

    Args:
      runs: of fixed budgets and policies. beams: of beams and `ar`, may be empty. decodes: see
        `prediction_errors`, with `sizes`, rounds by rows verified. rounds: of `trace_rounds`.

    Returns:
      `results` and `averages` (`jaxspec.bench.report.summary.summarise` and its mean over the domains), `beams`
      likewise, `hindsight`, `sizes`, `prediction`, `surrogate` and `best_first_over_beam`, lists of
      flat records, see `sweep_figures`; and what they come from, `decodes` and `rounds`.
    """
    drift = estimate_drift(runs)
    runs = [remove_drift(run, drift) for run in runs]
    t, domains = reduce_runs(runs, prompts), [prompt.domain for prompt in prompts]
    fixed = [method.name for method in family.fixed]
    pairs = [(fixed[1 + i], beam.name) for i, beam in enumerate(family.beams)]
    compared = (
        reduce_runs([*runs, *(run for run in beams if run.method != "ar")], prompts)
        if beams
        else None
    )
    return {
        "results": summarise(runs, prompts),
        "averages": average_domains(t),
        "beams": [
            record
            for record in (summarise(beams, prompts) if beams else ())
            if record["method"] != "ar"
        ],
        "hindsight": [
            record
            for policy in family.policies
            for record in compare_hindsight(t, policy.name, fixed)
        ],
        "sizes": _sizes(decodes, domains),
        "prediction": measure_prediction_errors(decodes, domains),
        "surrogate": fit_surrogate(rounds, domains),
        "best_first_over_beam": compare_acceptance(compared, pairs) if compared else [],
        "decodes": list(decodes),
        "rounds": list(rounds),
    }


def _table(
    params, method: Method, options: dict[str, Any], widths: Sequence[int] | None
) -> RoundCosts:
    settings = timed(options | method.options)
    if widths is None:
        return measured(params, method.options["method"], **settings)
    return calibrate(params, method.options["method"], widths=widths, **settings)


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
    """A list, and a function for `measure` that adds to it what a policy's state counts of every
    decode.
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


def _sizes(decodes: Sequence[dict[str, Any]], domains: Sequence[str]) -> list[dict[str, Any]]:
    """Rounds of every policy and domain by the rows that were verified; entry 0 counts rounds that
    did not draft.
    """
    records = []
    for method in dict.fromkeys(decode["method"] for decode in decodes):
        for domain in (*dict.fromkeys(domains), ALL_DOMAINS):
            chosen = [
                one
                for one in decodes
                if one["method"] == method and domain in (ALL_DOMAINS, domains[one["prompt"]])
            ]
            sizes = np.sum([one["sizes"] for one in chosen], axis=0).astype(int).tolist()
            records.append({"method": method, "domain": domain, "sizes": sizes})
    return records
