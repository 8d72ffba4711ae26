import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.costs.round_costs import make_costs
from jaxspec.policies.bastion.controller import make_bastion
from jaxspec.policies.bastion.controller_state import init_controller
from jaxspec.policies.bastion.online_costs import COMMON, MOST, correct_row_costs

COSTS = make_costs((1, 4, 8), (64.0,), 0.5, [[2.0], [3.0], [4.0]]).by_rows()
ROWS = 8
# Share of a correction that concerns all kinds of rounds, if the decode ran one kind.
SHARED = COMMON / (COMMON + 1)


def rounds(**counts):
    """Rounds by verified rows, as the controller counts them."""
    sizes = np.zeros(ROWS + 1)
    for name, count in counts.items():
        sizes[int(name[1:])] = count
    return sizes


def test_the_width_that_was_used_is_corrected():
    """Ten rounds of 3 rows, which cost as much as 4, took 1.2 times as long as predicted."""
    after = correct_row_costs(COSTS, rounds(n3=10), 35.0, 42.0, rate=1.0)
    changes = 0.2 * np.array([SHARED, SHARED, 1, SHARED])
    np.testing.assert_allclose(
        after.rounds()[:, 0], [2.0, 2.5, 3.5, 4.5] * np.exp(changes), rtol=1e-5
    )


def test_autoregressive_rounds_are_a_kind_of_their_own():
    after = correct_row_costs(COSTS, rounds(n0=10), 20.0, 18.0, rate=1.0)
    changes = -0.1 * np.array([1, SHARED, SHARED, SHARED])
    np.testing.assert_allclose(
        after.rounds()[:, 0], [2.0, 2.5, 3.5, 4.5] * np.exp(changes), rtol=1e-5
    )


def test_repeated_corrections_find_the_costs():
    """Decodes of different mixtures, with costs that are all off by different factors."""
    truth, costs = np.array([1.6, 2.7, 3.2, 5.4]), COSTS
    generator = np.random.default_rng(0)
    for _ in range(400):
        counts = generator.integers(0, 20, 4) * (generator.random(4) < 0.5)
        if counts.sum():
            sizes = rounds(**dict(zip(("n0", "n1", "n4", "n8"), counts, strict=True)))
            predicted = float(counts @ costs.rounds()[:, 0])
            costs = correct_row_costs(costs, sizes, predicted, float(counts @ truth), rate=0.2)
    np.testing.assert_allclose(costs.rounds()[:, 0], truth, rtol=0.02)


def test_a_disturbed_decode_changes_little():
    after = correct_row_costs(COSTS, rounds(n8=10), 45.0, 4500.0, rate=0.2)
    np.testing.assert_allclose(after.rounds()[-1, 0], 4.5 * np.exp(0.2 * MOST), rtol=1e-5)


def test_more_rows_never_take_less():
    after = correct_row_costs(COSTS, rounds(n4=10), 35.0, 200.0, rate=1.0)
    assert np.all(np.diff(after.rounds()[1:, 0]) >= 0)


def test_the_controller_corrects_its_costs():
    """After a decode of ten rounds of 8 rows; without a rate nothing changes."""
    table = make_costs((1, 4, 8), (64.0,), 0.5, [[2.0], [3.0], [4.0]])
    before = init_controller(4, ROWS)
    after = before.replace(sizes=jnp.asarray(rounds(n8=10), jnp.int32), predicted=jnp.float32(45.0))
    for rate, expected in ((0.0, 4.5), (1.0, 4.5 * np.exp(0.1))):
        policy = make_bastion(table, rate=rate)
        controls = policy.config.observe_seconds(policy.controls, before, after, 49.5)
        np.testing.assert_allclose(controls.costs.rounds()[-1, 0], expected, rtol=1e-5)
    with pytest.raises(ValueError, match="rate is 2: give a weight"):
        make_bastion(table, rate=2)
