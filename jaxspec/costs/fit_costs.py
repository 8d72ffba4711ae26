"""Replace measured verification times by the roofline that is fitted to them, as BASTION does.

Oh, Cao et al. 2026 (arXiv 2605.29727), section 4. A measured table is a staircase with noise, and
ends at the rows that were measured. The fit is a smooth model of four coefficients, which the
paper's controller follows from row to row.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from jaxspec.core.config import TargetConfig
from jaxspec.costs.roofline import PeakRates, check_dense, paper_bytes, paper_flops, roofline_costs
from jaxspec.costs.roofline_fit import RooflineFit, fit_roofline, weigh_small_forwards
from jaxspec.costs.round_costs import RoundCosts


class FittedCosts(NamedTuple):
    """A fitted table, and how far predictions are from measured verification times.

    Attributes:
      costs: the measured drafting with the fitted verification.
      fit: the coefficients.
      bare_error: root mean square error of the bare roofline, in seconds.
      error: that of the fit.
      left_out_error: that of predictions for each context by a fit to the others; None if the
        others are too few.
    """

    costs: RoundCosts
    fit: RooflineFit
    bare_error: float
    error: float
    left_out_error: float | None


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
    left_out = list(_predict_left_out(new, cached, compute, memory, seconds))
    bare_error, error = (
        _rms(model.seconds(compute, memory) - seconds) for model in (RooflineFit(), fit)
    )
    left_out_error = _rms(np.concatenate(left_out)) if left_out else None
    costs = roofline_costs(
        config,
        device,
        measured.widths,
        measured.contexts,
        draft=measured.draft,
        itemsize=itemsize,
        fit=fit,
    )
    about = measured.about | {
        "verification": "roofline, fitted to measured times",
        **device._asdict(),
        **fit._asdict(),
        "error": error,
        "bare_error": bare_error,
    }
    costs = dataclasses.replace(costs, about=about)
    return FittedCosts(costs, fit, bare_error, error, left_out_error)


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
