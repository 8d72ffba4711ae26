"""Replace measured verification times by the roofline that is fitted to them, as BASTION does.

Oh, Cao et al. 2026 (arXiv 2605.29727), section 4. A measured table is a staircase with noise, and
ends at the rows that were measured. The fit is a model of four coefficients, which is evaluated at
every number of rows and which the paper's controller follows from row to row.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from jaxspec.core.config import TargetConfig
from jaxspec.costs.roofline import (
    PeakRates,
    check_dense,
    double_contexts,
    paper_bytes,
    paper_flops,
    roofline_costs,
)
from jaxspec.costs.roofline_fit import (
    EMA,
    RooflineFit,
    correct_running,
    fit_roofline,
    weigh_small_forwards,
)
from jaxspec.costs.round_costs import RoundCosts


class FittedCosts(NamedTuple):
    """A fitted table, and how far predictions are from measured verification times.

    Attributes:
      costs: the measured drafting with the fitted verification, at every number of rows. Its
        `about` holds the coefficients, the errors and the measured times.
      fit: the coefficients.
      errors: root mean square errors in seconds, of the `bare` roofline and of the `fit`, of both
        with the running correction (`ema`, `ema_fit`), see `run_ema`, and `left_out`, of the
        predictions for each context by a fit to the others (None if the others are too few).
    """

    costs: RoundCosts
    fit: RooflineFit
    errors: dict[str, float | None]


def fit_costs(
    config: TargetConfig, measured: RoundCosts, device: PeakRates, itemsize: int = 2
) -> FittedCosts:
    """Fit the roofline of a device to measured costs by rows.

    Small forward passes have the largest weights, see `weigh_small_forwards`; errors are not
    weighted.

    Args:
      config: of the target.
      measured: times of rounds of one sequence.
      device: peak rates.
      itemsize: bytes of a weight.

    Raises:
      ValueError: the target is sparse, the table is not by rows alone, or it holds fewer than 4
        times.
    """
    check_dense(config)
    if measured.blocks or measured.step is not None:
        raise ValueError("cannot fit costs by block size or draft step: measure a table by rows")
    new, cached = (
        axis.ravel() for axis in np.meshgrid(measured.widths, measured.contexts, indexing="ij")
    )
    compute = np.asarray(paper_flops(config, new, cached)) / device.flops
    memory = np.asarray(paper_bytes(config, new, cached, itemsize)) / device.bandwidth
    seconds = measured.verify[0].ravel()
    fit = fit_roofline(compute, memory, seconds, weigh_small_forwards(new))
    bare, fitted = (model.seconds(compute, memory) for model in (RooflineFit(), fit))
    left_out = list(_predict_left_out(new, cached, compute, memory, seconds))
    errors = {
        "bare": _rms(bare - seconds),
        "ema": _rms(run_ema(bare, seconds)),
        "fit": _rms(fitted - seconds),
        "ema_fit": _rms(run_ema(fitted, seconds)),
        "left_out": _rms(np.concatenate(left_out)) if left_out else None,
    }
    costs = spread_roofline(config, measured, device, itemsize, fit)
    about = measured.about | {
        "verification": "roofline, fitted to measured times",
        **device._asdict(),
        **fit._asdict(),
        "root_mean_square_errors": errors,
        "measured": {
            "widths": list(measured.widths),
            "contexts": measured.contexts.tolist(),
            "seconds": measured.verify[0].tolist(),
            "bare": bare.reshape(measured.verify[0].shape).tolist(),
        },
    }
    return FittedCosts(dataclasses.replace(costs, about=about), fit, errors)


def spread_roofline(
    config: TargetConfig,
    measured: RoundCosts,
    device: PeakRates,
    itemsize: int = 2,
    fit: RooflineFit | None = None,
) -> RoundCosts:
    """Replace the verification of measured costs by a roofline, up to the target's last position.

    Drafting stays as measured. `fit`: None takes the bare roofline.
    """
    contexts = double_contexts(measured.contexts, config.max_positions)
    draft = np.interp(contexts, measured.contexts, measured.draft)
    return roofline_costs(
        config, device, measured.compiled, contexts, draft=draft, itemsize=itemsize, fit=fit
    )


def run_ema(predicted: np.ndarray, seconds: np.ndarray, seed: int = 0) -> np.ndarray:
    """Compute the errors, in seconds, of predictions times BASTION's running factor.

    The factor sees the measured times one after the other in random order, all of them twice. Each
    is predicted with the factor before it, and the errors are those of the second time.
    """
    rng = np.random.default_rng(seed)
    order = np.concatenate([rng.permutation(len(seconds)) for _ in range(2)])
    factor = correct_running(seconds[order], predicted[order], EMA)[len(seconds) - 1 : -1]
    last = order[len(seconds) :]
    return factor * predicted[last] - seconds[last]


def _predict_left_out(
    new: np.ndarray,
    cached: np.ndarray,
    compute: np.ndarray,
    memory: np.ndarray,
    seconds: np.ndarray,
) -> Iterator[np.ndarray]:
    """Yield the errors at each context, in seconds, of a fit to all other contexts."""
    for context in np.unique(cached):
        kept = cached != context
        if kept.sum() < 4:
            return
        sigma = weigh_small_forwards(new[kept])
        fit = fit_roofline(compute[kept], memory[kept], seconds[kept], sigma)
        yield fit.seconds(compute[~kept], memory[~kept]) - seconds[~kept]


def _rms(error: np.ndarray) -> float:
    return float(np.sqrt(np.mean(error**2)))
