"""The acceptance surrogate against accepted tokens, over the drafter's whole greedy chain.

Oh, Cao et al. 2026 (arXiv 2605.29727), figure 6: the sum of path probabilities of the chain of most
probable tokens, without the root's 1, against the tokens of it that the target accepts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import jaxspec
from benchmarks.sweep.predictions import fit_surrogate
from benchmarks.sweep.rounds import estimate_variance
from jaxspec.bench.report.summary import describe_environment
from jaxspec.call.options import group_options
from jaxspec.call.output import TracedRound
from jaxspec.io.text.prompt_files import LabelledPrompt
from jaxspec.policies.bastion.controller import RAW_SCORES
from jaxspec.tuner.calibrate.round_clock import plan_rounds

# Rows that hold every drafter's chain.
_ROWS = 256


def measure_surrogate(
    params,
    prompts: Sequence[LabelledPrompt],
    *,
    drafter: str = "dflash",
    options: dict[str, Any] | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Correlate the surrogate of whole greedy chains with accepted tokens, round by round.

    Args:
      options: keyword arguments of `jaxspec.decode`; paths have a score temperature of 1 unless
        they give another.

    Returns:
      `drafter`, `depth` of the chains, `surrogate` (records of
      `benchmarks.sweep.predictions.fit_surrogate` of raw scores; `expected` and `committed` count
      the root, which changes no correlation) and `rounds` (each {"prompt", "surrogate",
      "accepted"}), with the environment.
    """
    chain = {"drafter": drafter, "builder": "chain", "budget": _ROWS}
    given = {"score_temperature": RAW_SCORES} | (options or {}) | chain
    name, records = f"{drafter}-chain", []
    for index, prompt in enumerate(prompts):
        progress(f"prompt {index + 1} of {len(prompts)} ({prompt.domain})")
        out = jaxspec.decode(params, prompt.content, **group_options(**given), trace=True)
        # The stop or the limit cuts the last round.
        records += [describe_chain(one) | {"prompt": index} for one in out.rounds[:-1]]
    progress("")
    fits = fit_surrogate(
        [record | {"method": name} for record in records], [prompt.domain for prompt in prompts]
    )
    return describe_environment(params) | {
        "drafter": drafter,
        "depth": plan_rounds(params, given).longest - 1,
        "options": dict(options or {}),
        "surrogate": [fit for fit in fits if fit["estimate"] == "raw"],
        "rounds": [
            {
                "prompt": record["prompt"],
                "surrogate": record["raw"] - 1,
                "accepted": record["committed"] - 1,
            }
            for record in records
        ],
    }


def describe_chain(traced: TracedRound) -> dict[str, Any]:
    """Describe a round as `fit_surrogate` reads it; the sums count the root."""
    probability = np.exp(np.asarray(traced.tree.logprob, np.float64))
    total = float(probability.sum())
    variance = estimate_variance(probability, np.asarray(traced.tree.depth))
    return {
        "rows": len(probability),
        "committed": len(traced.path),
        **{name: total for name in ("raw", "corrected")},
        **{f"{name}_variance": variance for name in ("raw", "corrected")},
    }


def plot_surrogate(report: dict[str, Any], axes: Any) -> None:
    """Plot accepted tokens over the surrogate, a point a round, and their means in tenths."""
    pairs = np.array([[one["surrogate"], one["accepted"]] for one in report["rounds"]])
    axes.plot(*pairs.T, ".", alpha=0.2)
    parts = np.array_split(pairs[np.argsort(pairs[:, 0])], 10)
    axes.plot(*np.array([part.mean(0) for part in parts if len(part)]).T, "o-")
    axes.set(xlabel="sum of path probabilities of the chain", ylabel="accepted tokens")
