"""JetSpec's equations 1 and 2 against values by hand."""

import numpy as np
import pytest

from jaxspec.costs.expected_speed import (
    draft_cost,
    expected_speed,
    expected_tokens,
    find_alpha,
    plot_expected_speed,
)


def test_tokens_and_speed_by_hand():
    # 1 + 0.8 + 0.64 + 0.512 tokens, in 1 + 3 * 0.05 plain rounds.
    assert expected_tokens(0.8, 3) == pytest.approx(2.952)
    assert expected_speed(0.8, 0.05, 3) == pytest.approx(2.952 / 1.15)
    np.testing.assert_allclose(expected_tokens(np.array([0.0, 1.0]), 4), [1, 5])


def test_one_forward_pays_for_depth_and_one_a_token_does_not():
    """With c of a token, speed has a peak; with c = 0.2 / gamma it rises with gamma."""
    gamma = np.arange(1, 65)
    by_token = expected_speed(0.8, 0.1, gamma)
    by_block = expected_speed(0.8, 0.2 / gamma, gamma)
    assert 1 < by_token.argmax() + 1 < 10 and (np.diff(by_block) > 0).all()


def test_cost_of_a_drafted_token():
    assert draft_cost(2.0, 10.0, 4) == pytest.approx(0.05)
    assert draft_cost(None, 10.0, 4) is None and draft_cost(2.0, 10.0, 0) is None


def test_rate_of_measured_tokens():
    assert find_alpha(2.952, 3) == pytest.approx(0.8)
    assert find_alpha(1, 3) == pytest.approx(0, abs=1e-9) and find_alpha(4, 3) == pytest.approx(1)
    with pytest.raises(ValueError, match="give 1 to 4"):
        find_alpha(4.5, 3)


def test_the_figure_is_drawn(tmp_path):
    plot_expected_speed(tmp_path / "speed.png")
    assert (tmp_path / "speed.png").stat().st_size > 0
