"""Make round costs from the roofline of a device, bare or fitted to measured rounds, and keep them.

They replace the measured table of the same rounds, so all policies made from costs read them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxspec.core.params import Params
from jaxspec.costs.fit_costs import FittedCosts, fit_costs
from jaxspec.costs.roofline import PeakRates, check_dense, roofline_costs
from jaxspec.costs.round_costs import RoundCosts
from jaxspec.tuner.calibrate.by_rows import calibrate, default_widths, keep_costs
from jaxspec.tuner.calibrate.ceilings import CEILING_SIZES, default_platform, measure_ceilings
from jaxspec.tuner.calibrate.round_clock import default_contexts, plan_rounds, sample_tokens


def measure_peaks(dtype: Any) -> PeakRates:
    """Measure the default device's rates of a matrix product and of a copy; medians of a few."""
    megabytes, size = CEILING_SIZES[default_platform()]
    with jax.default_matmul_precision("highest" if dtype == jnp.float32 else None):
        found = measure_ceilings(dtype, megabytes=megabytes, size=size)
    names = ("matmul_flops_per_second", "copy_bytes_per_second")
    return PeakRates(*(found[name]["median"] for name in names))


def fit_table(
    params: Params,
    drafter: str,
    device: PeakRates,
    *,
    contexts: Sequence[int] | None = None,
    repeats: int = 9,
    **options: Any,
) -> FittedCosts:
    """Measure rounds, fit the roofline to their verification, and keep the fitted costs.

    Args:
      device: peak rates.
      contexts, repeats, options: see `jaxspec.tuner.calibrate.by_rows.calibrate`; rounds of one
        sequence.

    Raises:
      ValueError: see `calibrate` and `fit_costs`.
    """
    check_dense(params.spec.target)
    measured = calibrate(params, drafter, contexts=contexts, repeats=repeats, **options)
    found = fit_costs(params.spec.target, measured, device, _itemsize(params))
    return found._replace(costs=keep_costs(params, drafter, found.costs, **options))


def make_bare_table(
    params: Params,
    drafter: str,
    device: PeakRates,
    *,
    budget: int = 32,
    contexts: Sequence[int] | None = None,
    **options: Any,
) -> RoundCosts:
    """Compute round costs from peak rates alone, without time for drafting, and keep them.

    Args:
      device: peak rates.
      budget, contexts, options: see `jaxspec.tuner.calibrate.by_rows.calibrate`; rounds of one
        sequence.

    Raises:
      ValueError: `ar`, a budget of 1, or see `roofline_costs`.
    """
    settings = {"drafter": drafter, "budget": budget, **options}
    if plan_rounds(params, settings).drafter is None:
        raise ValueError(f"drafter {drafter!r} with a budget of {budget} drafts nothing")
    target = params.spec.target
    contexts = contexts or default_contexts(target.max_positions, sample_tokens(params, settings))
    costs = roofline_costs(
        target, device, default_widths(budget), contexts, itemsize=_itemsize(params)
    )
    about = {"verification": "roofline", "drafting": "not counted", **device._asdict()}
    costs = dataclasses.replace(costs, about=about)
    return keep_costs(params, drafter, costs, budget=budget, **options)


def _itemsize(params: Params) -> int:
    """Return the bytes of a weight."""
    return jnp.dtype(params.dtype).itemsize
