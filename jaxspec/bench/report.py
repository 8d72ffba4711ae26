"""From runs to figures: one flat record per method and domain, and a table of them."""

from __future__ import annotations

import importlib.metadata
import math
import os
import platform
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np

from jaxspec import quant
from jaxspec.bench.bootstrap import interval, resamples
from jaxspec.bench.measure import Run
from jaxspec.bench.prompts import Prompt

ALL = "all"
PHASES = ("draft", "tree", "verify", "absorb", "rest")
# Phases that plain decoding has not: the cost of drafting.
DRAFTING = ("draft", "tree", "absorb")


def summarise(runs: Sequence[Run], prompts: Sequence[Prompt], profile: dict | None = None) -> list[dict[str, Any]]:
    """Flat records, one per method and domain, and one per method over `all` prompts.

    Every prompt counts with the median of its repeats. `tokens_per_second` is tokens over seconds, summed over the prompts;
    tokens drawn by a prefill are counted only where prefill is included. Keys ending in `_median` and `_iqr` (25th and 75th
    percentile) are over the prompts; `repeat_spread` is the median over the prompts of (slowest - fastest) / median repeat.
    `mean_acceptance_length` is tokens per round, the bonus included. `accept_hist[i]` rounds committed i tokens.
    `speedup` is the ratio of `tokens_per_second` to that of `ar` on the same prompts. Keys ending in `_ci` are the bounds of a
    95 % confidence interval, see `jaxspec.bench.bootstrap`: how far other prompts of these domains might move the figure, not
    how far the machine's speed might.

    Args:
      profile: {(method, domain): {phase: milliseconds a round}}, from `jaxspec.bench.profile`; adds `ms_draft`, `ms_tree`,
        `ms_verify`, `ms_absorb` and `ms_rest`, measured apart from the loop, so that they need not add up to `ms_per_round`,
        and `draft_share`, what of their sum goes to drafting: draft, tree and absorb.
    """
    grouped: dict[tuple[str, int], list[Run]] = defaultdict(list)
    for run in runs:
        grouped[run.method, run.prompt].append(run)
    methods = dict.fromkeys(run.method for run in runs)
    domains = dict.fromkeys(prompt.domain for prompt in prompts)
    records = []
    for domain in (*domains, ALL):
        chosen = [i for i, prompt in enumerate(prompts) if domain in (ALL, prompt.domain)]
        baseline = [grouped["ar", i] for i in chosen]
        drawn = resamples([prompts[i].domain for i in chosen])
        for method in methods:
            record = {"method": method, "domain": domain, **_record([grouped[method, i] for i in chosen], baseline, drawn)}
            records.append(record | _phases(method, (profile or {}).get((method, domain), {})))
    return records


def _phases(method: str, phases: dict[str, float]) -> dict[str, float | None]:
    if not phases:
        return {}
    share = sum(phases[phase] for phase in DRAFTING) / sum(phases.values())
    # Plain decoding drafts nothing: what is timed there is the dispatch of empty programs.
    return {f"ms_{phase}": phases[phase] for phase in PHASES} | {"draft_share": None if method == "ar" else share}


def _record(groups: list[list[Run]], baseline: list[list[Run]], drawn: np.ndarray) -> dict[str, Any]:
    """Figures of one method over some prompts; a group holds the repeats of a prompt, `drawn` are `resamples` of them."""
    first = [group[0] for group in groups]
    decode, plain = _seconds(groups), _seconds(baseline)
    total = np.array([np.median([run.decode_seconds + run.prefill_seconds for run in group]) for group in groups])
    own = np.array([_rate(group) for group in groups])
    ratios = own / np.array([_rate(group) for group in baseline])
    after_prefill = sum(len(run.tokens) - 1 for run in first)
    rounds = sum(run.rounds for run in first)
    tokens, of_plain = (np.array([len(group[0].tokens) - 1 for group in some]) for some in (groups, baseline))
    differing = sum(any(run.tokens != other[0].tokens for run in group) for group, other in zip(groups, baseline, strict=True))
    spread = [np.ptp(s) / np.median(s) for s in ([run.decode_seconds for run in group] for group in groups)]
    return {
        "prompts": len(groups),
        "tokens": sum(len(run.tokens) for run in first),
        "rounds": rounds,
        "drafted": sum(run.drafted for run in first),
        "tokens_per_second": _ratio(after_prefill, decode.sum()),
        "tokens_per_second_with_prefill": _ratio(sum(len(run.tokens) for run in first), total.sum()),
        "tokens_per_second_median": _percentile(own, 50),
        "tokens_per_second_iqr": [_percentile(own, 25), _percentile(own, 75)],
        "speedup": _ratio(_ratio(after_prefill, decode.sum()), _ratio(of_plain.sum(), plain.sum())),
        "speedup_ci": interval(drawn, (tokens, plain), (decode, of_plain)),
        "speedup_median": _percentile(ratios, 50),
        "speedup_iqr": [_percentile(ratios, 25), _percentile(ratios, 75)],
        "repeat_spread": _percentile(np.array(spread), 50),
        "mean_acceptance_length": _ratio(after_prefill, rounds),
        "mean_acceptance_length_ci": interval(drawn, (tokens,), (np.array([run.rounds for run in first]),)),
        "accept_hist": _add(run.accept_hist for run in first),
        "ms_per_round": _ratio(1e3 * decode.sum(), rounds),
        "ms_prefill": _percentile(np.array([1e3 * run.prefill_seconds for group in groups for run in group]), 50),
        "identical_to_ar": differing == 0,
        "differing_prompts": differing,
    }


def _rate(group: list[Run]) -> float:
    """Tokens per second after the prefill, over the median repeat; NaN where the prefill drew the only token."""
    seconds = np.median([run.decode_seconds for run in group])
    return (len(group[0].tokens) - 1) / seconds if group[0].rounds else math.nan


def _seconds(groups: list[list[Run]]) -> np.ndarray:
    return np.array([np.median([run.decode_seconds for run in group]) for group in groups])


def _ratio(a: float | None, b: float | None) -> float | None:
    return None if a is None or not b else float(a / b)


def _percentile(values: np.ndarray, q: float) -> float | None:
    values = values[np.isfinite(values)]
    return float(np.percentile(values, q)) if len(values) else None


def _add(histograms: Iterable[Sequence[int]]) -> list[int]:
    histograms = list(histograms)
    total = np.zeros(max(map(len, histograms)), int)
    for histogram in histograms:
        total[: len(histogram)] += histogram
    return total.tolist()


def environment(params) -> dict[str, Any]:
    """Device, versions and weights' dtype: what a figure depends on besides the settings."""
    first = jax.devices()[0]
    device = {"platform": first.platform, "kind": first.device_kind, "count": jax.device_count(), "cpus": os.cpu_count()}
    versions = {name: importlib.metadata.version(name) for name in ("jax", "jaxlib", "flax", "numpy")}
    try:
        versions["jax-speculative"] = importlib.metadata.version("jax-speculative")
    except importlib.metadata.PackageNotFoundError:
        versions["jax-speculative"] = "not installed (source tree)"
    return {
        "device": device,
        "versions": {"python": platform.python_version(), **versions},
        "dtype": str(params.dtype),
        "quantize": quant.kind_of(params.target),
    }
