"""Compute figures of a sweep: speed-ups, acceptance, and policies against the best fixed budget in
hindsight.

Intervals are 95 % intervals of the paired bootstrap of `jaxspec.core.bootstrap`: all
methods use the same resampled prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxspec.bench.measure.decodes import Run
from jaxspec.core.bootstrap import LEVEL, resample_prompts
from jaxspec.io.text.prompt_files import ALL_DOMAINS, LabelledPrompt

# The average over the domains with equal weights.
MEAN = "mean"


class Timings(NamedTuple):
    """Tokens, rounds and seconds of M methods, of which the first is `ar`, on P prompts.

    Attributes:
      methods: M names.
      domains: P names, the domain of each prompt.
      tokens: float64 [M, P], without the prefill's token.
      rounds: float64 [M, P].
      seconds: float64 [M, P], medians over the repeats.
    """

    methods: tuple[str, ...]
    domains: tuple[str, ...]
    tokens: np.ndarray
    rounds: np.ndarray
    seconds: np.ndarray


def reduce_runs(runs: Sequence[Run], prompts: Sequence[LabelledPrompt]) -> Timings:
    """Reduce every method's runs of a prompt to one figure each."""
    methods = tuple(dict.fromkeys(run.method for run in runs))
    of = {(method, i): [] for method in methods for i in range(len(prompts))}
    for run in runs:
        of[run.method, run.prompt].append(run)

    def table(figure):
        return np.array(
            [[figure(of[method, i]) for i in range(len(prompts))] for method in methods], np.float64
        )

    return Timings(
        methods,
        tuple(prompt.domain for prompt in prompts),
        table(lambda group: len(group[0].tokens) - 1),
        table(lambda group: group[0].rounds),
        table(lambda group: np.median([run.decode_seconds for run in group])),
    )


def compute_speedups(t: Timings, drawn: np.ndarray) -> np.ndarray:
    """Divide tokens per second by those of the first method: float64 [R, M, D] for D domains in
    order of appearance.

    Args:
      drawn: int [R, P], how often each prompt counts.
    """
    domains, of = dict.fromkeys(t.domains), np.array(t.domains)
    rates = [
        ((drawn * (of == one)) @ t.tokens.T) / ((drawn * (of == one)) @ t.seconds.T)
        for one in domains
    ]
    return np.stack([rate / rate[:, :1] for rate in rates], axis=-1)


def average_domains(t: Timings) -> list[dict[str, Any]]:
    """Average the domains' speed-ups: one record per method, in the form of the records of
    `jaxspec.bench.report.summary.summarise`.
    """
    point, spread = _point_and_spread(t)
    return [
        {
            "method": name,
            "domain": MEAN,
            "speedup": float(point[m].mean()),
            "speedup_ci": bound_spread(spread, spread[:, m].mean(-1)),
        }
        for m, name in enumerate(t.methods)
    ]


def compare_hindsight(t: Timings, policy: str, fixed: Sequence[str]) -> list[dict[str, Any]]:
    """Compare a policy's speed with the best fixed budget in hindsight, per domain and overall.

    Returns:
      A record per domain: `best` is the budget that was fastest on these prompts, and `ratio` the
      policy's speed over it. Each resample chooses its own best budget, so the interval is
      pessimistic: the best of many noisy budgets looks better than it is. The record of domain
      `mean` compares means over the domains with the best budget of each domain. The record
      `single` compares with the one budget whose mean is best; its `margins`,
      {budget: [ratio, low, high]}, are of all budgets.
    """
    point, spread = _point_and_spread(t)
    own, others = t.methods.index(policy), [t.methods.index(name) for name in fixed]

    def compared(domain: str, best: str, score) -> dict[str, Any]:
        bounds = bound_spread(spread, score(spread))
        return {
            "policy": policy,
            "domain": domain,
            "best": best,
            "ratio": float(score(point[None])[0]),
            "ratio_ci": bounds,
        }

    records = []
    for d, domain in enumerate(dict.fromkeys(t.domains)):
        best = fixed[int(np.argmax(point[others, d]))]
        records.append(compared(domain, best, lambda s, d=d: s[:, own, d] / s[:, others, d].max(1)))
    records.append(
        compared(
            MEAN, "of each domain", lambda s: s[:, own].mean(-1) / s[:, others].max(1).mean(-1)
        )
    )
    best = fixed[int(np.argmax(point[others].mean(-1)))]
    single = compared("single", best, lambda s: s[:, own].mean(-1) / s[:, others].mean(-1).max(1))
    margins = {}
    for name, other in zip(fixed, others, strict=True):
        ratio = spread[:, own].mean(-1) / spread[:, other].mean(-1)
        margins[name] = [
            float(point[own].mean() / point[other].mean()),
            *(bound_spread(spread, ratio) or (None, None)),
        ]
    return [*records, single | {"margins": margins}]


def compare_pairs(t: Timings, pairs: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
    """Compare pairs of methods in mean acceptance length and in speed, for each domain and `all`.

    Returns:
      A record per pair and domain: `length` and `other_length` in tokens a round, `ratio` of both;
      `speed` and `other_speed` in tokens a second, `speed_ratio`; ratios with intervals (`_ci`).
    """
    of, records = np.array(t.domains), []
    drawn, once = resample_prompts(t.domains), np.ones((1, len(of)))
    for domain in (*dict.fromkeys(t.domains), ALL_DOMAINS):
        chosen = (of == domain) | (domain == ALL_DOMAINS)
        for pair in pairs:
            m = [t.methods.index(name) for name in pair]

            def over(per, times, m=m, chosen=chosen):
                return [
                    (times[:, chosen] @ t.tokens[i, chosen]) / (times[:, chosen] @ per[i, chosen])
                    for i in m
                ]

            record = {"method": pair[0], "other": pair[1], "domain": domain}
            for name, prefix, per in (("length", "", t.rounds), ("speed", "speed_", t.seconds)):
                first, second = (float(one[0]) for one in over(per, once))
                bounds = bound_spread(drawn, np.divide(*over(per, drawn)))
                record |= {name: first, f"other_{name}": second}
                record |= {f"{prefix}ratio": first / second, f"{prefix}ratio_ci": bounds}
            records.append(record)
    return records


def _point_and_spread(t: Timings) -> tuple[np.ndarray, np.ndarray]:
    return compute_speedups(t, np.ones((1, len(t.domains))))[0], compute_speedups(
        t, resample_prompts(t.domains)
    )


def bound_spread(drawn: np.ndarray, values: np.ndarray) -> list[float] | None:
    """Bound resampled figures by percentiles; None if all resamples are alike (one prompt each)."""
    values = np.asarray(values, np.float64)
    if not len(drawn) or (drawn == drawn[:1]).all():
        return None
    values = values[np.isfinite(values)]
    return (
        [float(np.percentile(values, q)) for q in (50 - LEVEL / 2, 50 + LEVEL / 2)]
        if len(values)
        else None
    )
