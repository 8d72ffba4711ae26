"""Fit roofline times to measured times: BASTION's two-branch fit and its running correction.

Oh, Cao et al. 2026 (arXiv 2605.29727), section 4 (calibration) and the ablation of EMA. The fit is
a line for each branch of the roofline,

    seconds = max(compute_scale * flops / peak + compute_offset,
                  memory_scale * bytes / bandwidth + memory_offset),

with all four coefficients at least zero. The memory branch matters only below the ridge, where the
number of bytes hardly changes. Its two coefficients are therefore weakly determined: compare fits
by their predictions, not by their coefficients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

# Weight of a measured time in the running correction; the golden traces have 0.1 and 0.2.
EMA = 0.2


class RooflineFit(NamedTuple):
    """Coefficients of the two branches, in the reference's order. Offsets are in seconds."""

    memory_scale: float = 1.0
    memory_offset: float = 0.0
    compute_scale: float = 1.0
    compute_offset: float = 0.0

    def seconds(self, compute: ArrayLike, memory: ArrayLike) -> np.ndarray:
        """Predict seconds from the roofline's two times in seconds, arrays that broadcast."""
        return np.maximum(
            self.memory_scale * memory + self.memory_offset,
            self.compute_scale * compute + self.compute_offset,
        )


def weigh_small_forwards(new: ArrayLike, spread: float = 30.0) -> np.ndarray:
    """Compute standard deviations float64 [M] that give small forward passes the largest weights.

    They grow linearly with the tokens of a pass, `new` [M]; the largest is 1 + `spread` times the
    smallest. Their mean is 1.
    """
    new = np.asarray(new, np.float64)
    range_ = new.max() - new.min()
    sigma = 1 + spread * (new - new.min()) / (range_ if range_ else 1.0)
    return sigma / sigma.mean()


def fit_roofline(
    compute: ArrayLike, memory: ArrayLike, seconds: ArrayLike, sigma: ArrayLike | None = None
) -> RooflineFit:
    """Fit the coefficients to measured forward passes by least squares.

    The branches cross at the ridge, so the sum of squares has kinks and more than one minimum. The
    solver therefore starts from the bare roofline, as the reference does, and also from larger
    scales and from offsets up to half the smallest measured time.

    Args:
      compute, memory: float [M], the roofline's two times of each pass, in seconds.
      seconds: float [M], measured times.
      sigma: float [M], standard deviations, see `weigh_small_forwards`; None makes them equal.

    Raises:
      ValueError: there are fewer than 4 measurements, or one is not a positive number.
    """
    from scipy.optimize import least_squares

    compute, memory, seconds = (np.asarray(x, np.float64) for x in (compute, memory, seconds))
    if seconds.size < 4 or not np.all(np.isfinite(seconds) & (seconds > 0)):
        raise ValueError(
            f"cannot fit {seconds.size} times: "
            "give at least 4 measured times, all positive numbers of seconds"
        )
    weight = 1 / (np.ones_like(seconds) if sigma is None else np.asarray(sigma, np.float64))
    least = float(seconds.min())

    # Solve in units of the smallest time, so that scales and offsets have similar magnitudes.
    def residual(x):
        found = RooflineFit(x[0], x[1] * least, x[2], x[3] * least).seconds(compute, memory)
        return weight * (found - seconds) / least

    starts = [
        (1.0, 0.0, 1.0, 0.0),
        (1.0, 0.5, 1.0, 0.5),
        (2.0, 0.0, 2.0, 0.0),
        (1.0, 0.5, 3.0, 0.1),
    ]
    tried = [
        least_squares(residual, start, bounds=(0, np.inf), xtol=1e-12, ftol=1e-12)
        for start in starts
    ]
    x = min(tried, key=lambda result: result.cost).x
    return RooflineFit(float(x[0]), float(x[1] * least), float(x[2]), float(x[3] * least))


def correct_running(
    observed: Sequence[float], predicted: Sequence[float], rate: float, start: float = 1.0
) -> np.ndarray:
    """Run BASTION's EMA: c <- (1 - rate) c + rate * observed / predicted after every verification.

    The corrected prediction is c times the model's.

    Returns:
      float64 [rounds], c after each round.
    """
    factors, factor = [], start
    for one, other in zip(observed, predicted, strict=True):
        factor = (1 - rate) * factor + rate * one / other
        factors.append(factor)
    return np.asarray(factors)
