"""RooflineFit roofline times to measured ones: the two-branch fit of BASTION's code, and its running
correction.

Oh, Cao et al. 2026 (arXiv 2605.29727), section 4 (calibration) and the ablation of EMA. A fitted curve is a line over
each branch of the roofline,

    seconds = max(compute_scale * flops / peak + compute_offset, memory_scale * bytes / bandwidth +
    memory_offset),

all four at least zero. The memory branch only matters below the ridge, where bytes hardly change, so
its two numbers are weakly determined: compare fits by what they predict.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike


class RooflineFit(NamedTuple):
    """Coefficients of the two branches, in the order of the reference: scales are ratios, offsets
    seconds.
    """

    memory_scale: float = 1.0
    memory_offset: float = 0.0
    compute_scale: float = 1.0
    compute_offset: float = 0.0

    def seconds(self, compute: ArrayLike, memory: ArrayLike) -> np.ndarray:
        """Predicted seconds from the roofline's two times in seconds, arrays that broadcast."""
        return np.maximum(
            self.memory_scale * memory + self.memory_offset,
            self.compute_scale * compute + self.compute_offset,
        )


def weigh_small_forwards(new: ArrayLike, spread: float = 30.0) -> np.ndarray:
    """Standard deviations float64 [M], of mean 1, with which a fit weighs small forwards most: they
    grow with the tokens of a forward, `new` [M], by a factor of 1 + `spread` in all.
    """
    new = np.asarray(new, np.float64)
    range_ = new.max() - new.min()
    sigma = 1 + spread * (new - new.min()) / (range_ if range_ else 1.0)
    return sigma / sigma.mean()


def fit_roofline(
    compute: ArrayLike, memory: ArrayLike, seconds: ArrayLike, sigma: ArrayLike | None = None
) -> RooflineFit:
    """Least squares over measured forwards.

    The branches cross at the ridge, where the sum of squares has kinks and more than one minimum.
    The solver therefore starts from the bare roofline, as the reference does, and also from offsets
    as large as the smallest measured time.

    Args:
      compute, memory: float [M], the roofline's two times of each forward, seconds. seconds: float
        [M], measured.
      sigma: float [M], standard deviations, see `weigh_small_forwards`; None: all equal.

    Raises:
      ValueError: fewer measurements than coefficients, or one that is not a positive number.
    """
    from scipy.optimize import least_squares

    compute, memory, seconds = (np.asarray(x, np.float64) for x in (compute, memory, seconds))
    if seconds.size < 4 or not np.all(np.isfinite(seconds) & (seconds > 0)):
        raise ValueError(
            f"cannot fit {seconds.size} times: give at least 4 measured times, all positive numbers of seconds"
        )
    weight = 1 / (np.ones_like(seconds) if sigma is None else np.asarray(sigma, np.float64))
    least = float(seconds.min())

    # Solved in units of the smallest time, so that scales and offsets are numbers of one size.
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
    """BASTION's EMA: c <- (1 - rate) c + rate * observed / predicted after every round; the
    prediction is c times the model's.

    Returns:
      float64 [rounds], c after each round.
    """
    factors, factor = [], start
    for one, other in zip(observed, predicted, strict=True):
        factor = (1 - rate) * factor + rate * one / other
        factors.append(factor)
    return np.asarray(factors)
