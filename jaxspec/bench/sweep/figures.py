"""Figures of a sweep: policies against fixed budgets chosen in hindsight, predictions against what
happened.

Intervals are of 95 %, by the paired bootstrap of `jaxspec.bench.report.bootstrap`: the same
resampled prompts for all methods.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxspec.bench.measure import Run
from jaxspec.bench.prompts import Prompt
from jaxspec.bench.report.bootstrap import LEVEL, resamples
from jaxspec.bench.report.summary import ALL

# The average over the domains, each of which counts alike.
MEAN = "mean"


class Timings(NamedTuple):
    """What methods took; M methods, the first is `ar`, and P prompts.

    Attributes:
      methods: M names. domains: P names, of each prompt.
      tokens, rounds: float64 [M, P], the tokens without the prefill's. seconds: float64 [M, P],
        medians over the repeats.
    """

    methods: tuple[str, ...]
    domains: tuple[str, ...]
    tokens: np.ndarray
    rounds: np.ndarray
    seconds: np.ndarray


def timings(runs: Sequence[Run], prompts: Sequence[Prompt]) -> Timings:
    """Every method's runs of every prompt, reduced to one figure each."""
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


def speedups(t: Timings, drawn: np.ndarray) -> np.ndarray:
    """Tokens a second over those of the first method: float64 [R, M, D], of D domains in the order
    of their appearance.

    Args:
      drawn: int [R, P], how often each prompt counts.
    """
    domains, of = dict.fromkeys(t.domains), np.array(t.domains)
    rates = [
        ((drawn * (of == one)) @ t.tokens.T) / ((drawn * (of == one)) @ t.seconds.T)
        for one in domains
    ]
    return np.stack([rate / rate[:, :1] for rate in rates], axis=-1)


def averages(t: Timings) -> list[dict[str, Any]]:
    """The mean of the domains' speed-ups, a record a method, as `jaxspec.bench.summarise` has them
    for a domain.
    """
    point, spread = _point_and_spread(t)
    return [
        {
            "method": name,
            "domain": MEAN,
            "speedup": float(point[m].mean()),
            "speedup_ci": _bounds(spread, spread[:, m].mean(-1)),
        }
        for m, name in enumerate(t.methods)
    ]


def hindsight(t: Timings, policy: str, fixed: Sequence[str]) -> list[dict[str, Any]]:
    """A policy's speed over that of the best fixed budget of each domain, and of the best single
    one on average.

    Returns:
      A record a domain: `best` is the budget that was fastest on these very prompts and `ratio` the
      policy's speed over its; resamples choose their own best, as hindsight would (the interval
      lies low: the best of many noisy budgets is never an honest one). The record of domain `mean`
      compares means over the domains with the best budget of each, and the record `single` with the
      one budget whose mean is best, with `margins`, {budget: [ratio, low, high]}, of all.
    """
    point, spread = _point_and_spread(t)
    own, others = t.methods.index(policy), [t.methods.index(name) for name in fixed]

    def compared(domain: str, best: str, score) -> dict[str, Any]:
        bounds = _bounds(spread, score(spread))
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
            *(_bounds(spread, ratio) or (None, None)),
        ]
    return [*records, single | {"margins": margins}]


def acceptance_ratios(t: Timings, pairs: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
    """Mean acceptance lengths of methods (first, second), and their ratio, for each domain and
    `all`.
    """
    of, records = np.array(t.domains), []
    drawn = resamples(t.domains)
    for domain in (*dict.fromkeys(t.domains), ALL):
        chosen = (of == domain) | (domain == ALL)
        for pair in pairs:
            m = [t.methods.index(name) for name in pair]

            def lengths(times, m=m, chosen=chosen):
                return [
                    (times[:, chosen] @ t.tokens[i, chosen])
                    / (times[:, chosen] @ t.rounds[i, chosen])
                    for i in m
                ]

            first, second = (float(one[0]) for one in lengths(np.ones((1, len(of)))))
            spread = np.divide(*lengths(drawn))
            record = {
                "method": pair[0],
                "other": pair[1],
                "domain": domain,
                "length": first,
                "other_length": second,
            }
            records.append(record | {"ratio": first / second, "ratio_ci": _bounds(drawn, spread)})
    return records


def prediction_errors(
    decodes: Sequence[dict[str, Any]], domains: Sequence[str]
) -> list[dict[str, Any]]:
    """How far predicted times of decodes lie from measured ones: median of |predicted / measured -
    1| over the decodes.

    Args:
      decodes: each {"method", "prompt", "measured", "predicted", "rounds"}, seconds. domains: of
        the prompts.

    Returns:
      A record a policy and domain, and one over all: `error` with its interval, `bias`, the median
      of predicted / measured - 1, and milliseconds a round, `predicted_ms` and `measured_ms`.
    """
    records, drawn = [], resamples(domains)
    for method in dict.fromkeys(decode["method"] for decode in decodes):
        for domain in (*dict.fromkeys(domains), ALL):
            of = [
                [
                    one
                    for one in decodes
                    if one["method"] == method and one["prompt"] == i and one["rounds"]
                ]
                for i, name in enumerate(domains)
                if domain in (ALL, name)
            ]
            chosen = [i for i, name in enumerate(domains) if domain in (ALL, name)]
            signed = [
                np.array([one["predicted"] / one["measured"] - 1 for one in group]) for group in of
            ]
            spread = np.array(
                [
                    _median(np.abs(signed[i]) for i in np.repeat(range(len(of)), row))
                    for row in drawn[:, chosen]
                ]
            )
            every = [one for group in of for one in group]
            rounds = sum(one["rounds"] for one in every)
            record = {"method": method, "domain": domain, "decodes": len(every)}
            record |= {
                "error": _median(map(np.abs, signed)),
                "error_ci": _bounds(drawn, spread),
                "bias": _median(signed),
            }
            ms = {
                f"{what}_ms": 1e3 * sum(one[what] for one in every) / max(rounds, 1)
                for what in ("predicted", "measured")
            }
            records.append(record | ms)
    return records


def surrogate_fit(rounds: Sequence[dict[str, Any]], domains: Sequence[str]) -> list[dict[str, Any]]:
    """Expected against committed tokens of drafted rounds: correlations whose unit is the round,
    and the means.

    Args:
      rounds: of `sweep_rounds.rounds_of`; `raw` and `corrected` are sums of path probabilities over
        the verified rows, the root's 1 included. Rounds of a single row expect and commit one
        token, and are left out. domains: of the prompts.

    Returns:
      A record a policy, estimate (`raw` or `corrected`) and domain, and one over all: `pearson` and
      `spearman` with intervals over resampled prompts (ranks stay those of all rounds), `expected`
      and `committed`, mean tokens a round, `pearson_of_prompts`, of the means of three prompts or
      more, and `attainable`, what `pearson` would be if nodes were accepted with exactly the
      probabilities of the estimate: chance keeps it below 1.
    """
    from scipy.stats import rankdata

    records, drawn = [], resamples(domains)
    for method in dict.fromkeys(one["method"] for one in rounds):
        own = [one for one in rounds if one["method"] == method and one["rows"] > 1]
        for domain in (*dict.fromkeys(domains), ALL):
            chosen = [one for one in own if domain in (ALL, domains[one["prompt"]])]
            prompt = np.array([one["prompt"] for one in chosen], int)
            for estimate in ("raw", "corrected"):
                x, y = (
                    np.array([one[name] for one in chosen], np.float64)
                    for name in (estimate, "committed")
                )
                record = {
                    "method": method,
                    "domain": domain,
                    "estimate": estimate,
                    "rounds": len(chosen),
                }
                noise = _mean(np.array([one[f"{estimate}_variance"] for one in chosen]))
                record |= {"expected": _mean(x), "committed": _mean(y)}
                record["attainable"] = (
                    float(x.std() / np.sqrt(x.var() + noise)) if chosen and x.var() > 0 else None
                )
                for name, (a, b) in {
                    "pearson": (x, y),
                    "spearman": (rankdata(x), rankdata(y)),
                }.items():
                    sums = _sums(a, b, prompt, len(domains))
                    record[name] = _correlation(sums.sum(0))
                    record[f"{name}_ci"] = _bounds(drawn, _correlation(drawn @ sums))
                sums = _sums(x, y, prompt, len(domains))
                seen = sums[:, 0] > 0
                means = sums[seen, 1:3] / sums[seen, :1]
                every = _sums(*means.T, np.zeros(len(means), int), 1)[0]
                # Of two points it is 1 or -1.
                records.append(
                    record | {"pearson_of_prompts": _correlation(every) if len(means) > 2 else None}
                )
    return records


def _point_and_spread(t: Timings) -> tuple[np.ndarray, np.ndarray]:
    return speedups(t, np.ones((1, len(t.domains))))[0], speedups(t, resamples(t.domains))


def _bounds(drawn: np.ndarray, values: np.ndarray) -> list[float] | None:
    """Percentiles of resampled figures; None where the resamples do not differ, as with one prompt
    a domain.
    """
    values = np.asarray(values, np.float64)
    if not len(drawn) or (drawn == drawn[:1]).all():
        return None
    values = values[np.isfinite(values)]
    return (
        [float(np.percentile(values, q)) for q in (50 - LEVEL / 2, 50 + LEVEL / 2)]
        if len(values)
        else None
    )


def _median(groups) -> float | None:
    values = np.concatenate([*groups, np.zeros(0)])
    return float(np.median(values)) if len(values) else None


def _mean(values: np.ndarray) -> float | None:
    return float(values.mean()) if len(values) else None


def _sums(x: np.ndarray, y: np.ndarray, group: np.ndarray, groups: int) -> np.ndarray:
    """[groups, 6]: of each group the count and the sums of x, y, x * x, y * y and x * y."""
    return np.stack(
        [np.bincount(group, w, groups) for w in (np.ones_like(x), x, y, x * x, y * y, x * y)],
        axis=-1,
    )


def _correlation(sums: np.ndarray):
    """Pearson's correlation from sums [..., 6] as of `_sums`; NaN, and None for a single one, where
    a side does not vary.
    """
    n, x, y, xx, yy, xy = np.moveaxis(sums, -1, 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        spread = (n * xx - x * x) * (n * yy - y * y)
        found = np.where(
            spread > 1e-12 * n**4, (n * xy - x * y) / np.sqrt(np.maximum(spread, 0)), np.nan
        )
    return found if found.ndim else (float(found) if np.isfinite(found) else None)
