"""Correct round costs by the wall-clock times of whole decodes.

The host sees one number per decode: the seconds of all its rounds. The controller's state says how
many rounds of each width it ran, and so what the costs predict. The difference has two causes: the
machine is slower or faster than when its costs were measured, which concerns all kinds of rounds,
or the costs of the kinds that ran are wrong, in proportion to their share of the prediction
(normalised least mean squares, Widrow and Hoff 1960, on the logarithms of the costs). The common
part changes no decision, since the controller compares ratios.
"""

from __future__ import annotations

import numpy as np

from jaxspec.costs.row_costs import RowCosts, width_indices

# Variance of the machine's speed over that of the error of one cost.
COMMON = 2.0
# A decode that other work on the machine disturbed says little: limit what it can change.
LEAST, MOST = -0.3, 0.5


def correct_row_costs(
    costs: RowCosts, sizes: np.ndarray, predicted: float, seconds: float, rate: float
) -> RowCosts:
    """Correct costs after a decode.

    Args:
      costs: the costs that the decode was controlled by.
      sizes: int [N + 1], rounds of the decode by verified rows; entry 0 counts rounds that did not
        draft.
      predicted: seconds that the costs predict for these rounds, above 0.
      seconds: measured seconds.
      rate: 0, no correction, to 1, which explains the whole difference.

    Returns:
      Costs with the same widths and contexts.
    """
    rounds = np.zeros(len(costs.widths) + 1)
    rounds[0] = sizes[0]
    np.add.at(rounds, 1 + width_indices(len(sizes) - 1, costs.widths), sizes[1:])
    # Row 0 is a round of autoregressive decoding; row w + 1 is one that verifies width w.
    whole = costs.rounds()
    share = rounds * whole.mean(axis=1)
    share = share / share.sum()
    error = np.clip(seconds / predicted - 1, LEAST, MOST)
    part = (COMMON + share) / (COMMON + (share**2).sum())
    whole = whole * np.exp(rate * error * part)[:, None]
    return costs.with_rounds(whole)
