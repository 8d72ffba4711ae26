"""Fit one temperature per position to a confidence head (DSpark's sequential calibration).

Source: DSpark (DeepSeek 2026), section on confidence scheduling. Position by position, a grid
search finds the temperature of the position's logit with which the probability of the whole prefix
has the smallest expected calibration error; earlier temperatures stay as they were found.
"""

from __future__ import annotations

import numpy as np

from benchmarks.confidence.calibration import expected_error

GRID = np.geomspace(0.2, 5.0, 65)


def fit_temperatures(
    logits: np.ndarray, accepted: np.ndarray, grid: np.ndarray = GRID
) -> np.ndarray:
    """Fit the temperatures float64 [D] on R rounds.

    Args:
      logits: [R, D], the head's logits, NaN beyond a draft.
      accepted: [R, D], 1 where the prefix up to the position was accepted, else 0.
      grid: temperatures to try. Among equal errors the one nearest to 1 wins.

    Raises:
      ValueError: no round drafted a token.
    """
    if not np.isfinite(logits[:, :1]).any():
        raise ValueError("no round drafted a token: calibrate on rounds of a chain")
    near_one = grid[np.argsort(np.abs(np.log(grid)), kind="stable")]
    prefix, found = np.ones(len(logits)), []
    for e, a in zip(logits.T.astype(np.float64), accepted.T, strict=True):
        drafted = ~np.isnan(e)
        options = [prefix * sigmoid(e / temperature) for temperature in near_one]
        errors = [expected_error(p[drafted], a[drafted]) for p in options]
        best = int(np.argmin(errors)) if drafted.any() else 0
        found.append(near_one[best])
        prefix = options[best]
    return np.array(found)


def prefix_probability(logits: np.ndarray, temperatures: np.ndarray | float = 1.0) -> np.ndarray:
    """Compute the probability float64 [R, D] that each prefix is accepted.

    Args:
      logits: [R, D], NaN beyond a draft.
      temperatures: [D], or one for all.
    """
    return np.cumprod(sigmoid(logits / temperatures), axis=1)


def sigmoid(x: np.ndarray) -> np.ndarray:
    """Compute 1 / (1 + exp(-x)) without overflow; NaN stays NaN."""
    with np.errstate(invalid="ignore"):
        return np.exp(-np.logaddexp(0, -x))
