"""Rows by expected tokens over time."""

import jax.numpy as jnp
import numpy as np
import pytest
from observations import ask, make_seen

from jaxspec.core.state import Tree
from jaxspec.costs.round_costs import make_costs
from jaxspec.policies.learned import regression


def tree(probability) -> Tree:
    with np.errstate(divide="ignore"):
        return Tree(*[None] * 4, np.log(np.float32(probability)), None)


def test_regression_divides_by_the_time_of_the_width():
    """Committed 1, 0.5 and 0 tokens at 2, 3 and 8 rows plus what the first score adds to the last
    two; never less than 1.
    """
    table = make_costs((1, 4, 8), (0,), (1.0,), [[1.0], [2.0], [9.0]])
    layers = [
        {
            "kernel": np.float32([[0, 4, 8], [0, 0, 0], [0, 0, 0]]),
            "bias": np.float32([1.0, 0.5, 0.0]),
        }
    ]
    policy = regression.make_regression(table, layers, (2, 3, 8))
    for probability, rows in (
        (0.9, 3),
        (0.15, 3),
        (0.1, 2),
    ):  # 1 / 3, 4.1 / 3, 7.2 / 10; 1 / 3, 1.1 / 3, 1.2 / 10; 1, 1, 1
        assert ask(policy, "rows", make_seen(tree=tree([[1.0, probability, 0.0]] * 2))) == rows
    alone = make_seen(tree=tree([[1.0, 0.9, 0.5], [1.0, 0.0, 0.0]])).replace(
        live=jnp.array([False, True])
    )
    assert ask(policy, "rows", alone) == 2
    with pytest.raises(ValueError, match="sizes reach 9 rows and round costs 8"):
        regression.make_regression(table, layers, (2, 3, 9))
    x = regression.regression_features(
        np.log(np.float32([[0.5, 0.25, 1e-30]])), np.array([2000]), 5
    )
    np.testing.assert_allclose(x, [[0.5, 0.25, 0, 0, 0, 2.0]], atol=1e-6)
