"""Figures of probabilities against what happened, position by position.

Source: DeepSpec's evaluation. A prediction is the probability that a drafted chain is accepted up
to a position, a label whether it was. Positions that were not drafted are NaN.
"""

from __future__ import annotations

import dataclasses

import numpy as np

# DeepSpec's numbers of equal bins of the probability.
ERROR_BINS, RANKING_BINS = 20, 1000


@dataclasses.dataclass(frozen=True)
class Calibration:
    """Figures of D positions, float64 [D] each; NaN where there is nothing to judge.

    Attributes:
      count: predictions.
      error: expected calibration error: the mean distance of the mean prediction from the share of
        accepted ones, over bins of the prediction, weighted by their counts.
      ranking: area under the ROC curve: the probability that an accepted prefix has a higher
        prediction than a rejected one; equal bins count half.
      brier: mean squared distance of predictions from labels.
      predicted, accepted: means of predictions and of labels.
    """

    count: np.ndarray
    error: np.ndarray
    ranking: np.ndarray
    brier: np.ndarray
    predicted: np.ndarray
    accepted: np.ndarray


def calibrate(predicted: np.ndarray, accepted: np.ndarray) -> Calibration:
    """Compute the figures of R rounds.

    Args:
      predicted: [R, D], probabilities that the prefix up to each position is accepted.
      accepted: [R, D], 1 or 0; NaN where `predicted` is.
    """
    columns = [_one_position(p, a) for p, a in zip(predicted.T, accepted.T, strict=True)]
    return Calibration(*np.array(columns, np.float64).T)


def expected_error(predicted: np.ndarray, accepted: np.ndarray) -> float:
    """Compute the expected calibration error of [R] predictions without NaN."""
    at = _bins(predicted, ERROR_BINS)
    off = np.bincount(at, predicted, ERROR_BINS) - np.bincount(at, accepted, ERROR_BINS)
    return float(np.abs(off).sum() / len(predicted)) if len(predicted) else float("nan")


def rank_area(predicted: np.ndarray, accepted: np.ndarray) -> float:
    """Compute the area under the ROC curve of [R] predictions without NaN."""
    at = _bins(predicted, RANKING_BINS)
    right = np.bincount(at, accepted, RANKING_BINS)
    wrong = np.bincount(at, 1 - accepted, RANKING_BINS)
    pairs = right.sum() * wrong.sum()
    below = np.cumsum(wrong) - wrong
    return float(np.sum(right * (below + wrong / 2)) / pairs) if pairs else float("nan")


def _one_position(predicted: np.ndarray, accepted: np.ndarray) -> tuple[float, ...]:
    drafted = ~np.isnan(predicted)
    p, a = predicted[drafted].astype(np.float64), accepted[drafted].astype(np.float64)
    if not len(p):
        return (0.0, *(float("nan"),) * 5)
    return (
        float(len(p)),
        expected_error(p, a),
        rank_area(p, a),
        float(np.mean((p - a) ** 2)),
        float(p.mean()),
        float(a.mean()),
    )


def _bins(predicted: np.ndarray, count: int) -> np.ndarray:
    return np.clip((predicted * count).astype(np.int64), 0, count - 1)
