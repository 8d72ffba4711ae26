"""Make round costs from the roofline of a device, bare or fitted to measured rounds, and keep them.

They replace the measured table of the same rounds, so all policies made from costs read them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.core.params import Params
from jaxspec.costs.fit_costs import FittedCosts, fit_costs, spread_roofline
from jaxspec.costs.roofline import PeakRates, check_dense
from jaxspec.costs.round_costs import RoundCosts, make_costs
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
    widths: Sequence[int] | None = None,
    contexts: Sequence[int] | None = None,
    repeats: int = 9,
    **options: Any,
) -> FittedCosts:
    """Measure rounds, fit the roofline to their verification, and keep the fitted costs.

    Args:
      device: peak rates.
      widths, contexts, repeats, options: see `jaxspec.tuner.calibrate.by_rows.calibrate`; rounds of
        one sequence. Verification is compiled for the widths that were measured.

    Raises:
      ValueError: see `calibrate` and `fit_costs`.
    """
    check_dense(params.spec.target)
    sizes = {"widths": widths, "contexts": contexts, "repeats": repeats}
    measured = calibrate(params, drafter, **sizes, **options)
    found = fit_costs(params.spec.target, measured, device, _itemsize(params))
    return found._replace(costs=keep_costs(params, drafter, found.costs, **options))


def make_bare_table(
    params: Params,
    drafter: str,
    device: PeakRates,
    *,
    budget: int = 32,
    widths: Sequence[int] | None = None,
    contexts: Sequence[int] | None = None,
    repeats: int = 9,
    draft: float | None = None,
    **options: Any,
) -> RoundCosts:
    """Compute the costs of verification from peak rates alone, and keep them.

    Args:
      device: peak rates.
      budget, contexts, repeats, options: see `jaxspec.tuner.calibrate.by_rows.calibrate`; rounds of
        one sequence.
      widths: rows that verification is compiled for (None: powers of two).
      draft: seconds of drafting (None: measured here), for the rates of another device.

    Raises:
      ValueError: `ar`, a budget of 1, or see `roofline_costs`.
    """
    target = params.spec.target
    check_dense(target)
    settings = {"drafter": drafter, "budget": budget, **options}
    if plan_rounds(params, settings).drafter is None:
        raise ValueError(f"drafter {drafter!r} with a budget of {budget} drafts nothing")
    if draft is None:
        given = {"widths": (1, budget), "contexts": contexts, "repeats": repeats}
        timed = calibrate(params, drafter, budget=budget, **given, **options)
        contexts, drafting = timed.contexts, timed.draft
    else:
        contexts = contexts or default_contexts(
            target.max_positions, sample_tokens(params, settings)
        )
        drafting = draft
    widths = default_widths(budget) if widths is None else widths
    # Its verification is replaced.
    drafted = make_costs(widths, contexts, drafting, np.ones((len(widths), len(contexts))))
    costs = spread_roofline(target, drafted, device, _itemsize(params))
    about = {"verification": "roofline", **device._asdict()}
    costs = dataclasses.replace(costs, about=about)
    return keep_costs(params, drafter, costs, budget=budget, **options)


def _itemsize(params: Params) -> int:
    """Return the bytes of a weight."""
    return jnp.dtype(params.dtype).itemsize
