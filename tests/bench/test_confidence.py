"""How well confidences predict acceptance."""

import numpy as np
import pytest
from golden_data import arrays

from jaxspec.bench.confidence.calibration import calibrate, rank_area

GOLDEN = arrays("dspark", "calibration.npz")


def test_figures_are_deepspecs():
    found = calibrate(GOLDEN["prefix_prob"], GOLDEN["prefix_label"])
    ours = dict(
        total_weight=found.count, ece=found.error, auc=found.ranking, brier=found.brier,
        pred_mean=found.predicted, target_mean=found.accepted,
    )  # fmt: skip
    for name, values in ours.items():
        np.testing.assert_allclose(values, GOLDEN[name], rtol=1e-9, err_msg=name)


def test_the_area_is_the_share_of_pairs_in_order():
    rng = np.random.default_rng(0)
    predicted, accepted = rng.random(60), (rng.random(60) < 0.4).astype(float)
    right, wrong = predicted[accepted == 1], predicted[accepted == 0]
    share = np.mean(right[:, None] > wrong[None])
    assert rank_area(predicted, accepted) == pytest.approx(share, abs=2e-3)
    assert np.isnan(rank_area(predicted, np.ones(60)))
