"""Reduce the runs of a sweep at one temperature to the lists of its report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.sweep.family import Family
from benchmarks.sweep.figures import (
    average_domains,
    compare_hindsight,
    compare_pairs,
    reduce_runs,
)
from benchmarks.sweep.predictions import fit_surrogate, measure_prediction_errors
from jaxspec.bench.measure.decodes import Run, estimate_drift, remove_drift
from jaxspec.bench.report.summary import summarise
from jaxspec.io.text.prompt_files import ALL_DOMAINS, LabelledPrompt


def summarise_sweep(
    runs: Sequence[Run],
    decodes: Sequence[dict[str, Any]],
    rounds: Sequence[dict[str, Any]],
    prompts: Sequence[LabelledPrompt],
    family: Family,
) -> dict[str, Any]:
    """Summarise the runs of one temperature.

    Args:
      runs: of all methods of the family, in turns.
      decodes: see `measure_prediction_errors`; also with `sizes`, rounds by rows verified.
      rounds: records of `trace_rounds`.

    Returns:
      Lists of flat records, see `figures`: `results` and `averages`
      (`jaxspec.bench.report.summary.summarise` and its mean over the domains), `beams` in the same
      form, `hindsight`, `sizes`, `prediction`, `surrogate`, `best_first_over_beam` and
      `over_first_policy`, the other policies over the first; and their input, `decodes` and
      `rounds`.
    """
    drift = estimate_drift(runs)
    runs = [remove_drift(run, drift) for run in runs]
    t, domains = reduce_runs(runs, prompts), [prompt.domain for prompt in prompts]
    fixed, beams = ([method.name for method in some] for some in (family.fixed, family.beams))
    pairs = [(fixed[1 + i], beam) for i, beam in enumerate(beams)]
    records = summarise(runs, prompts)
    return {
        "results": [record for record in records if record["method"] not in beams],
        "averages": [one for one in average_domains(t) if one["method"] not in beams],
        "beams": [record for record in records if record["method"] in beams],
        "hindsight": [
            record
            for policy in family.policies
            for record in compare_hindsight(t, policy.name, fixed)
        ],
        "sizes": _sizes(decodes, domains),
        "prediction": measure_prediction_errors(decodes, domains),
        "surrogate": fit_surrogate(rounds, domains),
        "best_first_over_beam": compare_pairs(t, pairs),
        "over_first_policy": compare_pairs(
            t, [(one.name, family.policies[0].name) for one in family.policies[1:]]
        ),
        "decodes": list(decodes),
        "rounds": list(rounds),
    }


def _sizes(decodes: Sequence[dict[str, Any]], domains: Sequence[str]) -> list[dict[str, Any]]:
    """Count rounds of every policy and domain by the number of verified rows; entry 0 counts rounds
    that did not draft.
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
