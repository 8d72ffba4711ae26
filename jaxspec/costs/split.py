"""Split measured rounds into what drafting costs and what verification costs."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike


def split_rounds(plain: ArrayLike, drafted: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Split the seconds of rounds at K contexts, for `jaxspec.costs.round_costs.make_costs`.

    More rows never take less time. Where they seem to, it is noise, and a policy would follow it:
    such times are averaged (isotonic regression).

    Args:
      plain: [K], rounds of autoregressive decoding, which verify one row.
      drafted: [W, K], rounds that draft and verify each of W widths, the first of one row.

    Returns:
      float64 [K], drafting, and float64 [W, K], verification. Their sums are the rounds that draft,
      but for rounds of one row, which cost at least what a plain round does.
    """
    plain = np.asarray(plain, np.float64)
    rising = _make_rising(np.asarray(drafted, np.float64))
    draft = np.maximum(rising[0] - plain, 0.0)
    return draft, np.concatenate([plain[None], np.maximum(rising[1:] - draft, 1e-9)])


def _make_rising(drafted: np.ndarray) -> np.ndarray:
    if (np.diff(drafted, axis=0) >= 0).all():
        # Importing SciPy takes half a second of a first call.
        return drafted
    from scipy.optimize import isotonic_regression

    return np.stack([isotonic_regression(times).x for times in drafted.T], axis=1)
