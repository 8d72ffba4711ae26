"""Measure how well a policy predicts times of decodes, and tokens that drafted rounds commit.

Intervals are 95 % intervals of the paired bootstrap of `jaxspec.core.bootstrap`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.sweep.figures import bound_spread
from jaxspec.core.bootstrap import resample_prompts
from jaxspec.io.text.prompt_files import ALL_DOMAINS


def measure_prediction_errors(
    decodes: Sequence[dict[str, Any]], domains: Sequence[str]
) -> list[dict[str, Any]]:
    """Measure the error of predicted times of decodes: the median of |predicted / measured - 1|.

    Args:
      decodes: each {"method", "prompt", "measured", "predicted", "rounds"}, times in seconds.
      domains: domain of each prompt.

    Returns:
      A record per policy and domain, and one over all domains: `error` with its interval; `bias`,
      the median of predicted / measured - 1; and milliseconds per round, `predicted_ms` and
      `measured_ms`.
    """
    records, drawn = [], resample_prompts(domains)
    for method in dict.fromkeys(decode["method"] for decode in decodes):
        for domain in (*dict.fromkeys(domains), ALL_DOMAINS):
            of = [
                [
                    one
                    for one in decodes
                    if one["method"] == method and one["prompt"] == i and one["rounds"]
                ]
                for i, name in enumerate(domains)
                if domain in (ALL_DOMAINS, name)
            ]
            chosen = [i for i, name in enumerate(domains) if domain in (ALL_DOMAINS, name)]
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
                "error_ci": bound_spread(drawn, spread),
                "bias": _median(signed),
            }
            ms = {
                f"{what}_ms": 1e3 * sum(one[what] for one in every) / max(rounds, 1)
                for what in ("predicted", "measured")
            }
            records.append(record | ms)
    return records


def fit_surrogate(rounds: Sequence[dict[str, Any]], domains: Sequence[str]) -> list[dict[str, Any]]:
    """Compare expected with committed tokens of drafted rounds by correlations and means.

    Args:
      rounds: records of `trace_rounds`; `raw` and `corrected` are sums of path probabilities over
        the verified rows, the root's 1 included. Rounds of a single row expect and commit one
        token, and are left out.
      domains: domain of each prompt.

    Returns:
      A record per policy, estimate (`raw` or `corrected`) and domain, and one over all domains:
      `pearson` and `spearman` with intervals over resampled prompts (ranks stay those of all
      rounds); `expected` and `committed`, mean tokens per round; `pearson_of_prompts`, the
      correlation of the means of three or more prompts; and `attainable`, the value of `pearson` if
      nodes were accepted with exactly the probabilities of the estimate (chance keeps it below 1).
    """
    from scipy.stats import rankdata

    records, drawn = [], resample_prompts(domains)
    for method in dict.fromkeys(one["method"] for one in rounds):
        own = [one for one in rounds if one["method"] == method and one["rows"] > 1]
        for domain in (*dict.fromkeys(domains), ALL_DOMAINS):
            chosen = [one for one in own if domain in (ALL_DOMAINS, domains[one["prompt"]])]
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
                    record[f"{name}_ci"] = bound_spread(drawn, _correlation(drawn @ sums))
                sums = _sums(x, y, prompt, len(domains))
                seen = sums[:, 0] > 0
                means = sums[seen, 1:3] / sums[seen, :1]
                every = _sums(*means.T, np.zeros(len(means), int), 1)[0]
                # The correlation of two points is 1 or -1.
                records.append(
                    record | {"pearson_of_prompts": _correlation(every) if len(means) > 2 else None}
                )
    return records


def _median(groups) -> float | None:
    values = np.concatenate([*groups, np.zeros(0)])
    return float(np.median(values)) if len(values) else None


def _mean(values: np.ndarray) -> float | None:
    return float(values.mean()) if len(values) else None


def _sums(x: np.ndarray, y: np.ndarray, group: np.ndarray, groups: int) -> np.ndarray:
    """Return [groups, 6]: each group's count and sums of x, y, x * x, y * y and x * y."""
    return np.stack(
        [np.bincount(group, w, groups) for w in (np.ones_like(x), x, y, x * x, y * y, x * y)],
        axis=-1,
    )


def _correlation(sums: np.ndarray):
    """Compute Pearson's correlation from sums [..., 6] of `_sums`. If a side does not vary it is
    NaN, or None for a single correlation.
    """
    n, x, y, xx, yy, xy = np.moveaxis(sums, -1, 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        spread = (n * xx - x * x) * (n * yy - y * y)
        found = np.where(
            spread > 1e-12 * n**4, (n * xy - x * y) / np.sqrt(np.maximum(spread, 0)), np.nan
        )
    return found if found.ndim else (float(found) if np.isfinite(found) else None)
