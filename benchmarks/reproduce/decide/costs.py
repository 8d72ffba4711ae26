"""Rules over the roofline that is fitted to measured verification."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from benchmarks.reproduce.claim import Finding, Reports
from benchmarks.reproduce.decide.rules import Figure, above, below, find

Decide = Callable[[Reports], Finding]


def fit_cuts_the_error(least: float) -> Decide:
    """The fitted roofline's error is smaller than the bare one's by a share of at least `least`."""

    def decide(reports: Reports) -> Finding:
        errors = reports["calibration"]["costs"]["about"]["root_mean_square_errors"]
        bare, fit = 1e3 * errors["bare"], 1e3 * errors["fit"]
        figure = Figure(f"error {bare:.2g} to {fit:.2g} ms: cut by", 1 - fit / bare)
        return find([figure], lambda f: above(f, least))

    return decide


def bare_roofline_underestimates() -> Decide:
    """The bare roofline is below every measured verification of more than one row."""

    def decide(reports: Reports) -> Finding:
        about = reports["calibration"]["costs"]["about"]["measured"]
        rows = np.array(about["widths"]) > 1
        shares = (np.array(about["bare"]) / np.array(about["seconds"]))[rows]
        label = f"bare roofline / measured: from {shares.min():.2g} to"
        return find([Figure(label, float(shares.max()))], below)

    return decide
