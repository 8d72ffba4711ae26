"""BASTION's cost model: errors of its calibration, and budgets that it would choose elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

import jaxspec
from jaxspec.bench.architectures import ARCHITECTURES
from jaxspec.bench.report.summary import describe_environment
from jaxspec.call.options import group_options
from jaxspec.costs.files import encode_costs
from jaxspec.costs.fit_costs import fit_costs
from jaxspec.costs.roofline import DEVICES, PeakRates, roofline_costs
from jaxspec.io.text.prompt_files import LabelledPrompt
from jaxspec.policies.bastion.controller import RAW_SCORES
from jaxspec.policies.bastion.size_rules import choose_best_ratio
from jaxspec.tuner.calibrate.by_roofline import measure_peaks
from jaxspec.tuner.calibrate.by_rows import calibrate

# The share of a plain step of the target that a block drafter of five layers takes.
DRAFT_SHARE = 0.15


def measure_calibration(
    params,
    *,
    drafter: str = "dflash",
    device: PeakRates | None = None,
    budget: int = 32,
    widths: Sequence[int] | None = None,
    contexts: Sequence[int] | None = None,
    repeats: int = 9,
    **options: Any,
) -> dict[str, Any]:
    """Measure the errors of the bare, the running and the calibrated roofline (figure 9a).

    Nothing is kept for policies.

    Args:
      device: peak rates (None: measured here).
      budget, widths, contexts, repeats, options: see `jaxspec.tuner.calibrate.by_rows.calibrate`.

    Returns:
      `errors`, root mean squares in seconds (`jaxspec.costs.fit_costs.FittedCosts`); `cut`, the
      share of the bare one that calibration removes; `underestimated`, the share of measured times
      that the bare roofline is below; `bare_over_measured`, the median ratio; and `costs`, which
      `jaxspec.costs.files.decode_costs` reads and `jaxspec.view.cost_plot.plot_fit` plots.
    """
    peaks = device or measure_peaks(params.dtype)
    sizes = {"widths": widths, "contexts": contexts, "repeats": repeats}
    measured = calibrate(params, drafter, budget=budget, **sizes, **options)
    itemsize = jnp.dtype(params.dtype).itemsize
    found = fit_costs(params.spec.target, measured, peaks, itemsize)
    times = found.costs.about["measured"]
    ratio = np.array(times["bare"]) / np.array(times["seconds"])
    bare, fit = found.errors["bare"], found.errors["fit"]
    assert bare is not None and fit is not None, "both are always measured"
    return describe_environment(params) | {
        "drafter": drafter,
        "peaks": peaks._asdict(),
        "errors": found.errors,
        "cut": 1 - fit / bare,
        "underestimated": float((ratio < 1).mean()),
        "bare_over_measured": float(np.median(ratio)),
        "costs": encode_costs(found.costs),
    }


def measure_worth(
    params,
    prompts: Sequence[LabelledPrompt],
    *,
    method: dict[str, Any],
    options: dict[str, Any] | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> list[float]:
    """Measure the mean expected tokens of the first N rows of a tree, for every N.

    Args:
      method: drafter, builder and budget; options of `jaxspec.decode`.
    """
    given = group_options(**{"score_temperature": RAW_SCORES} | (options or {}) | method)
    curves = []
    for index, prompt in enumerate(prompts):
        progress(f"prompt {index + 1} of {len(prompts)} ({prompt.domain})")
        out = jaxspec.decode(params, prompt.content, **given, trace=True)
        for one in out.rounds:
            worth = np.cumsum(np.exp(np.asarray(one.tree.logprob, np.float64)))
            curves.append(np.pad(worth, (0, method["budget"] - len(worth)), mode="edge"))
    progress("")
    return np.mean(curves, axis=0).tolist()


def find_peaks(
    worth: Sequence[float],
    *,
    models: Sequence[str] = ("qwen3-4b", "qwen3-8b", "llama-3.1-8b"),
    devices: Sequence[str] = tuple(DEVICES),
    contexts: Sequence[int] = (512, 4096, 32768),
    draft_share: float = DRAFT_SHARE,
) -> list[dict[str, Any]]:
    """Find the fastest fixed budget by the bare roofline, for published models and GPUs (figure 5).

    Args:
      worth: expected tokens of the first N rows, from N = 1; see `measure_worth`.
      models: of `jaxspec.bench.architectures.ARCHITECTURES`.
      devices: of `jaxspec.costs.roofline.DEVICES`.
      contexts: cached tokens.
      draft_share: seconds of drafting, as a share of those of a plain step.

    Returns:
      A record for each: `model`, `device`, `context`, `rows`, and `speedup` over plain steps.
    """
    found, value = [], np.asarray(worth, np.float64)
    for model in models:
        for device in devices:
            widths = (1, len(value))
            costs = roofline_costs(ARCHITECTURES[model], DEVICES[device], widths, contexts)
            for column, context in enumerate(contexts):
                plain = float(costs.plain[column])
                seconds = draft_share * plain + costs.verify[0, :, column]
                rows = int(choose_best_ratio(value, seconds))
                speed = float(value[rows - 1] / seconds[rows - 1] * plain)
                record = {"model": model, "device": device, "context": context}
                found.append(record | {"rows": rows, "speedup": speed})
    return found
