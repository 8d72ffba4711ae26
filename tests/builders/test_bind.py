from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxspec.builders import (
    Proposes,
    best_first,
    chain,
    expand,
    make_fanout,
    parse_builder,
    scores,
)
from jaxspec.core.state import Candidates
from jaxspec.core.tree import validate


@pytest.mark.parametrize(
    ("spelling", "depth", "vocab", "budget", "expected"),
    [
        ("chain", 7, 100, 4, (4, 1, 3)),
        ("chain", 7, 100, 32, (8, 1, 7)),
        ("best_first", 7, 100, 16, (16, 15, 7)),
        ("best_first", 7, 100, 1, (1, 1, 0)),
        ("best_first", 7, 100, 4, (4, 3, 3)),
        ("best_first", 2, 3, 99, (13, 3, 2)),
        ("expand", 7, 100, 16, (16, 3, 5)),
        ("expand/w7", 7, 100, 16, (16, 7, 3)),
        ("expand", 2, 2, 99, (7, 2, 2)),
        ("expand", 7, 100, 1, (1, 1, 0)),
        ("dynamic/w3", 7, 100, 16, (16, 3, 7)),
    ],
)
def test_sizes(spelling, depth, vocab, budget, expected):
    growth = parse_builder(spelling).bind(Proposes(depth, depth, vocab, budget))
    assert (growth.rows, growth.candidates, growth.longest) == expected
    assert (growth.steps, growth.nodes) == (0, 0)
    logprob = np.log(
        np.tile(0.5 ** np.arange(1, growth.candidates + 1, dtype=np.float32), (2, depth, 1))
    )
    token = np.tile(np.arange(growth.candidates, dtype=np.int32), (2, depth, 1))
    tree = jax.jit(growth.build)(
        Candidates(token, logprob), jnp.array([5, 6]), jnp.array([depth, 1])
    )
    validate(tree)
    assert tree.token.shape == (2, growth.rows) and tree.ancestors.dtype == jnp.uint32
    assert int(tree.size[0]) == growth.rows and int(tree.depth[0].max()) <= growth.longest
    assert (
        int(tree.size[1]) == min(growth.rows, 1 + growth.candidates)
        and int(tree.depth[1].max()) <= 1
    )


def test_equal_builders_are_bound_once():
    sizes = Proposes(7, 7, 100, 16)
    assert expand(3).bind(sizes) is expand(width=3, fanout=None).bind(sizes)
    assert expand(3, "top2gap") == expand(3, make_fanout("top2gap"))
    assert len({expand(3), expand(3), best_first(), chain()}) == 3


def test_chain_stops_at_the_first_unusable_candidate():
    growth = chain().bind(Proposes(4, 4, 9, 9))
    logprob = jnp.array([[[-1.0], [-0.5], [-jnp.inf], [-1.0]]])
    tree = jax.jit(growth.build)(
        Candidates(jnp.array([[[4], [3], [2], [1]]]), logprob), jnp.array([8]), jnp.array([4])
    )
    validate(tree)
    assert tree.size.tolist() == [3] and tree.token[0].tolist() == [8, 4, 3, 0, 0]
    assert tree.logprob[0].tolist() == [0, -1.0, -1.5, -np.inf, -np.inf]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"budget": 0}, "budget is 0: it must be at least 1"),
        ({"depth": 0}, "depth is 0: it must be at least 1"),
        ({"vocab_size": 0}, "vocab_size is 0: it must be at least 1"),
        ({"retrieved": True}, "needs a drafter that proposes alternatives"),
        ({"vocab_size": 2}, "width is 3: give at most 2, the drafter's vocabulary"),
    ],
)
def test_bad_sizes(change, message):
    with pytest.raises(ValueError, match=message) as error:
        expand(3).bind(Proposes(3, 3, 50, 8)._replace(**change))
    assert "\n" not in str(error.value)


def test_candidates_that_are_too_few():
    growth = best_first().bind(Proposes(3, 3, 50, 8))
    narrow = Candidates(jnp.zeros((1, 3, 4), jnp.int32), jnp.zeros((1, 3, 4)))
    with pytest.raises(
        ValueError, match="candidates are 3 deep and 4 wide: this builder reads 3 by 7"
    ):
        growth.build(narrow, jnp.array([0]), jnp.array([3]))


@jax.jit
def total_cost(steps):
    costs = scores.from_logprob(steps[None], jnp.int32(1))
    total = scores.add(scores.add(costs.at((0, 0)), costs.at((0, 1))), costs.at((0, 2)))
    return total, scores.to_logprob(total)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.floats(-1000, 0, width=32).filter(lambda x: x == 0 or x < -(2.0**-25)),
        min_size=3,
        max_size=3,
    )
)
def test_costs_add_exactly(steps):
    total, logprob = total_cost(np.array(steps, np.float32))
    exact = Fraction(int(total.hi), 2**17) + Fraction(int(total.lo), 2**49)
    assert exact == -sum(Fraction(x) for x in steps)
    np.testing.assert_allclose(logprob, float(-exact), rtol=1e-6)
