"""How well confidences predict acceptance."""

import numpy as np
import pytest
from golden_data import arrays

from jaxspec.bench.confidence.calibration import calibrate, rank_area
from jaxspec.bench.confidence.temperatures import fit_temperatures, prefix_probability

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


def draw_rounds(temperatures, count=20_000):
    """Rounds whose head is off by a factor per position: logits and accepted prefixes."""
    rng = np.random.default_rng(1)
    true = rng.normal(0.5, 1.5, (count, len(temperatures)))
    accepted = np.cumprod(rng.random(true.shape) < 1 / (1 + np.exp(-true)), axis=1)
    return true * temperatures, accepted.astype(float)


def test_temperatures_undo_what_made_the_head_too_sure():
    wrong = np.array([2.0, 1.0, 0.5])
    logits, accepted = draw_rounds(wrong)
    found = fit_temperatures(logits, accepted)
    np.testing.assert_allclose(found, wrong, rtol=0.3)
    before = calibrate(prefix_probability(logits), accepted).error
    after = calibrate(prefix_probability(logits, found), accepted).error
    assert after[0] < before[0] / 3 and after.max() < 0.02


def test_temperatures_read_only_what_was_drafted():
    logits, accepted = draw_rounds(np.array([2.0, 2.0]))
    cut = logits.copy()
    cut[::2, 1] = np.nan
    found = fit_temperatures(cut, accepted)
    assert found[0] == fit_temperatures(logits, accepted)[0]
    assert found[1] == fit_temperatures(logits[1::2], accepted[1::2])[1] != 1
    with pytest.raises(ValueError, match="no round drafted"):
        fit_temperatures(np.full((3, 2), np.nan), np.zeros((3, 2)))
