"""Summarise runs: one flat record of figures per method and domain."""

from __future__ import annotations

import importlib.metadata
import math
import os
import platform
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from jaxspec.bench.measure.conversations import number_questions
from jaxspec.bench.measure.decodes import Run
from jaxspec.bench.measure.phases import DRAFTING, PHASES
from jaxspec.bench.report.definitions import (
    Timed,
    compare_speeds,
    divide,
    measure_acceptance,
    pad_histograms,
)
from jaxspec.core.bootstrap import bound_ratio, resample_prompts
from jaxspec.core.params import Params
from jaxspec.io.processor import describe_processor
from jaxspec.io.text.prompt_files import ALL_DOMAINS, LabelledPrompt
from jaxspec.targets.layouts import quant


def summarise(
    runs: Sequence[Run],
    prompts: Sequence[LabelledPrompt],
    profile: dict | None = None,
    *,
    baseline: str = "ar",
) -> list[dict[str, Any]]:
    """Make flat records, one per method and domain, and one per method over `all` prompts.

    Every prompt counts with the median of its repeats.
    - `tokens_per_second`: tokens over seconds, summed over the prompts. Tokens drawn by a prefill
      count only in figures that include it.
    - Keys ending in `_median` and `_iqr` (25th and 75th percentile) are over the prompts.
    - `repeat_spread`: median over the prompts of (slowest - fastest) / median repeat.
    - `accept_hist[i]`: number of rounds that committed i tokens;
      `jaxspec.bench.report.definitions` describes the figures derived from it.
    - `questions`: number of questions; the turns of a conversation count as one.
    - `speedup`: ratio of `tokens_per_second` to the baseline's on the same prompts.
    - Keys ending in `_ci` are the bounds of a 95 % confidence interval, see
      `jaxspec.core.bootstrap`: how far other prompts of these domains might move the
      figure. Noise of the machine is not included.

    Args:
      profile: {(method, domain): {phase: milliseconds per round}}, from
        `jaxspec.bench.measure.phases`. It adds `ms_draft`, `ms_tree`, `ms_verify`, `ms_absorb` and
        `ms_rest`, which are measured outside the loop, so their sum may differ from `ms_per_round`;
        and `draft_share`, the share of that sum for drafting (draft, tree and absorb).
      baseline: method that speeds and tokens are compared with, also for `identical_to_ar`.
    """
    grouped: dict[tuple[str, int], list[Run]] = defaultdict(list)
    for run in runs:
        grouped[run.method, run.prompt].append(run)
    methods = dict.fromkeys(run.method for run in runs)
    records = []
    for domain, chosen, of, drawn in each_domain(prompts):
        others = [grouped[baseline, i] for i in chosen]
        for method in methods:
            groups = [grouped[method, i] for i in chosen]
            record = {"method": method, "domain": domain, **_record(groups, others, drawn, of)}
            records.append(record | _phases(method, (profile or {}).get((method, domain), {})))
    return records


def each_domain(
    prompts: Sequence[LabelledPrompt],
) -> Iterator[tuple[str, list[int], list[Hashable], np.ndarray]]:
    """Go through the domains of prompts, and through all of them together at last.

    Yields:
      (domain, indices of its prompts, the question of each prompt, resampled prompts from
      `resample_prompts`).
    """
    asked = number_questions(prompts)
    for domain in (*dict.fromkeys(prompt.domain for prompt in prompts), ALL_DOMAINS):
        chosen = [i for i, prompt in enumerate(prompts) if domain in (ALL_DOMAINS, prompt.domain)]
        of = [asked[i] for i in chosen]
        yield domain, chosen, of, resample_prompts([prompts[i].domain for i in chosen], of)


def _phases(method: str, phases: dict[str, float]) -> dict[str, float | None]:
    if not phases:
        return {}
    share = sum(phases[phase] for phase in DRAFTING) / sum(phases.values())
    # Autoregressive decoding drafts nothing: these times are the dispatch of empty programs.
    return {f"ms_{phase}": phases[phase] for phase in PHASES} | {
        "draft_share": None if method == "ar" else share
    }


def _record(
    groups: list[list[Run]], baseline: list[list[Run]], drawn: np.ndarray, of: list
) -> dict[str, Any]:
    """Make the record of one method over some prompts.

    Args:
      groups: the repeats of each prompt.
      baseline: the baseline's repeats of each prompt.
      drawn: resampled prompts, from `resample_prompts`.
      of: question of each prompt, from `number_questions`.
    """
    first, own, plain = [group[0] for group in groups], _timed(groups), _timed(baseline)
    rates = np.array([_rate(group) for group in groups])
    ratios = rates / np.array([_rate(group) for group in baseline])
    rounds = sum(run.rounds for run in first)
    differing = sum(
        any(run.tokens != other[0].tokens for run in group)
        for group, other in zip(groups, baseline, strict=True)
    )
    spread = [
        np.ptp(s) / np.median(s)
        for s in ([run.decode_seconds for run in group] for group in groups)
    ]
    histograms, drafted = [run.accept_hist for run in first], sum(run.drafted for run in first)
    speed = divide(own.after.sum(), own.decoding.sum())
    return {
        "prompts": len(groups),
        "questions": len(set(of)),
        "tokens": sum(len(run.tokens) for run in first),
        "rounds": rounds,
        "drafted": drafted,
        "tokens_per_second": speed,
        "tokens_per_second_with_prefill": divide(own.tokens.sum(), own.seconds.sum()),
        "tokens_per_second_median": _percentile(rates, 50),
        "tokens_per_second_iqr": [_percentile(rates, 25), _percentile(rates, 75)],
        "speedup": _ratio(speed, divide(plain.after.sum(), plain.decoding.sum())),
        "speedup_ci": bound_ratio(drawn, (own.after, plain.decoding), (own.decoding, plain.after)),
        "speedup_median": _percentile(ratios, 50),
        "speedup_iqr": [_percentile(ratios, 25), _percentile(ratios, 75)],
        **compare_speeds(own, plain, of),
        "repeat_spread": _percentile(np.array(spread), 50),
        **measure_acceptance(histograms, drafted),
        "mean_acceptance_length_ci": bound_ratio(
            drawn, (own.after,), (np.array([run.rounds for run in first]),)
        ),
        "accept_hist": pad_histograms(histograms).sum(0).tolist(),
        "ms_per_round": divide(1e3 * own.decoding.sum(), rounds),
        "ms_prefill": _percentile(
            np.array([1e3 * run.prefill_seconds for group in groups for run in group]), 50
        ),
        "identical_to_ar": differing == 0,
        "differing_prompts": differing,
    }


def _timed(groups: list[list[Run]]) -> Timed:
    tokens = np.array([len(group[0].tokens) for group in groups], float)
    return Timed(
        tokens,
        np.array(
            [
                np.median([run.decode_seconds + run.prefill_seconds for run in group])
                for group in groups
            ]
        ),
        tokens - 1,
        np.array([np.median([run.decode_seconds for run in group]) for group in groups]),
    )


def _rate(group: list[Run]) -> float:
    """Return tokens per second after the prefill, with the median repeat; NaN if the prefill drew
    the only token.
    """
    seconds = np.median([run.decode_seconds for run in group])
    return (len(group[0].tokens) - 1) / seconds if group[0].rounds else math.nan


def _ratio(a: float | None, b: float | None) -> float | None:
    return None if a is None or not b else a / b


def _percentile(values: np.ndarray, q: float) -> float | None:
    values = values[np.isfinite(values)]
    return float(np.percentile(values, q)) if len(values) else None


def describe_environment(params: Params) -> dict[str, Any]:
    """Describe device, versions and weights' dtype, which every figure depends on."""
    first = jax.devices()[0]
    device = {
        "platform": first.platform,
        "kind": first.device_kind,
        "count": jax.device_count(),
        "processor": describe_processor(),
        "cpus": os.cpu_count(),
    }
    versions = {
        name: importlib.metadata.version(name) for name in ("jax", "jaxlib", "flax", "numpy")
    }
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
