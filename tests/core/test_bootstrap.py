import numpy as np

from jaxspec.core.bootstrap import bound_ratio, resample_prompts


def test_every_domain_keeps_its_number_of_prompts():
    domains = ["a"] * 3 + ["b"] * 5 + ["a"]
    drawn = resample_prompts(domains, count=50)
    assert drawn.shape == (50, 9)
    of_a = np.array(domains) == "a"
    assert (drawn[:, of_a].sum(1) == 4).all() and (drawn[:, ~of_a].sum(1) == 5).all()
    assert len({tuple(row) for row in drawn}) > 40


def test_interval_of_a_mean_is_the_normal_one():
    values = np.random.default_rng(1).normal(3.0, 1.0, 400)
    low, high = bound_ratio(resample_prompts(["a"] * 400), (values,), (np.ones(400),))
    error = values.std() / 20
    np.testing.assert_allclose(
        [low, high], [values.mean() - 1.96 * error, values.mean() + 1.96 * error], atol=0.02
    )


def test_a_factor_that_prompts_share_cancels():
    """Speed-ups are paired: what a prompt costs both methods does not widen the interval."""
    cost = np.array([1.0, 5.0, 2.0, 9.0])
    ones = np.ones(4)
    assert bound_ratio(resample_prompts(["a"] * 4), (ones, 2 * cost), (cost, ones)) == [2.0, 2.0]


def test_no_interval():
    assert bound_ratio(resample_prompts(["a", "b"]), (np.ones(2),), (np.ones(2),)) is None, (
        "one prompt a domain"
    )
    assert bound_ratio(resample_prompts(["a", "a"]), (np.ones(2),), (np.zeros(2),)) is None


def test_turns_of_a_question_are_drawn_together():
    domains, of = ["a"] * 5 + ["b"], ["p", "p", "q", "r", "r", "p"]
    drawn = resample_prompts(domains, of, count=50)
    np.testing.assert_array_equal(drawn[:, 0], drawn[:, 1])
    np.testing.assert_array_equal(drawn[:, 3], drawn[:, 4])
    assert (drawn[:, [0, 2, 3]].sum(1) == 3).all() and (drawn[:, 5] == 1).all()
    np.testing.assert_array_equal(resample_prompts(domains), resample_prompts(domains, range(6)))
