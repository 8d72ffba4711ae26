"""Round costs of a sweep's policies: kept, measured, fitted, or of the bare roofline.

All of them are made of one measurement, so that they differ in nothing else.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import jax.numpy as jnp

from jaxspec.costs.fit_costs import fit_costs, spread_roofline
from jaxspec.costs.roofline import PeakRates
from jaxspec.costs.round_costs import RoundCosts
from jaxspec.tuner.calibrate.by_roofline import measure_peaks
from jaxspec.tuner.calibrate.by_rows import calibrate, measured

# Of costs that a rule names no kind of: those that are kept.
KEPT = ""
KINDS = ("measured", "fit", "bare")


def make_cost_kinds(
    params,
    drafter: str,
    kinds: Collection[str],
    *,
    widths: Sequence[int] | None = None,
    device: PeakRates | None = None,
    **options: Any,
) -> dict[str, RoundCosts]:
    """Make round costs of each kind.

    Args:
      kinds: some of `KINDS`, or `KEPT`.
      widths: rows that verification is compiled for, ascending from 1 to the budget; times are then
        measured again, and fitted again if the kept ones are a fit (None: those of the kept costs).
      device: peak rates (None: measured here if a roofline is wanted).
      options: of the rounds, see `jaxspec.tuner.calibrate.by_rows.measured`.

    Raises:
      ValueError: see `calibrate` and `fit_costs`.
    """
    found: dict[str, RoundCosts] = {}
    if KEPT in kinds:
        kept = measured(params, drafter, **options)
        if widths is None or tuple(widths) == kept.compiled:
            found[KEPT] = kept
        else:
            kinds = {*kinds, find_kind(kept)}
    others = [kind for kind in KINDS if kind in kinds]
    if not others:
        return found
    times = calibrate(params, drafter, widths=widths, **options)
    if others != ["measured"]:
        target, itemsize = params.spec.target, jnp.dtype(params.dtype).itemsize
        device = device or measure_peaks(params.dtype)
    for kind in others:
        if kind == "measured":
            found[kind] = times
        elif kind == "fit":
            found[kind] = fit_costs(target, times, device, itemsize).costs
        else:
            found[kind] = spread_roofline(target, times, device, itemsize)
    if KEPT in kinds and KEPT not in found:
        found[KEPT] = found[find_kind(kept)]
    return found


def find_kind(costs: RoundCosts) -> str:
    """Say of which kind kept costs are."""
    how = costs.about.get("verification", "measured")
    return {"roofline": "bare"}.get(how, "fit" if how.startswith("roofline") else "measured")
