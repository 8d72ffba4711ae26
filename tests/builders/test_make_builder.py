from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxspec.builders import make_builder, scores
from jaxspec.core.state import Candidates
from jaxspec.core.tree import validate


def test_equal_arguments_give_the_identical_builder():
    arguments = {"depth": 7, "vocab_size": 100, "budget": 16, "tree_width": None}
    assert make_builder("best_first", **arguments) is make_builder("best_first", **arguments)


@pytest.mark.parametrize(
    ("name", "depth", "vocab", "budget", "width", "expected"),
    [
        ("chain", 7, 100, 4, None, (4, 1, 3)),
        ("chain", 7, 100, 32, None, (8, 1, 7)),
        ("best_first", 7, 100, 16, None, (16, 15, 7)),
        ("best_first", 7, 100, 1, None, (1, 1, 0)),
        ("ddtree", 7, 100, 4, None, (4, 3, 3)),
        ("best_first", 2, 3, 99, None, (13, 3, 2)),
        ("expand", 7, 100, 16, None, (16, 3, 5)),
        ("tree", 7, 100, 16, 7, (16, 7, 3)),
        ("expand", 2, 2, 99, None, (7, 2, 2)),
        ("expand", 7, 100, 1, None, (1, 3, 0)),
    ],
)
def test_sizes(name, depth, vocab, budget, width, expected):
    builder = make_builder(name, depth=depth, vocab_size=vocab, budget=budget, tree_width=width)
    assert (builder.rows, builder.candidates, builder.longest) == expected
    logprob = np.log(
        np.tile(0.5 ** np.arange(1, builder.candidates + 1, dtype=np.float32), (2, depth, 1))
    )
    token = np.tile(np.arange(builder.candidates, dtype=np.int32), (2, depth, 1))
    tree = jax.jit(builder.build)(
        Candidates(token, logprob), jnp.array([5, 6]), jnp.array([depth, 1])
    )
    validate(tree)
    assert tree.token.shape == (2, builder.rows) and tree.ancestors.dtype == jnp.uint32
    assert int(tree.size[0]) == builder.rows and int(tree.depth[0].max()) <= builder.longest
    assert (
        int(tree.size[1]) == min(builder.rows, 1 + builder.candidates)
        and int(tree.depth[1].max()) <= 1
    )


def test_chain_stops_at_the_first_unusable_candidate():
    builder = make_builder("chain", depth=4, vocab_size=9, budget=9)
    logprob = jnp.array([[[-1.0], [-0.5], [-jnp.inf], [-1.0]]])
    tree = jax.jit(builder.build)(
        Candidates(jnp.array([[[4], [3], [2], [1]]]), logprob), jnp.array([8]), jnp.array([4])
    )
    validate(tree)
    assert tree.size.tolist() == [3] and tree.token[0].tolist() == [8, 4, 3, 0, 0]
    assert tree.logprob[0].tolist() == [0, -1.0, -1.5, -np.inf, -np.inf]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"name": "fan"},
            "unknown builder 'fan': choose one of chain, best_first, expand, beam, static",
        ),
        (
            {"name": "best_first", "fanout": "top2gap"},
            "fanout is a rule of builder 'expand': leave it out with 'best_first'",
        ),
        ({"fanout": "wide"}, "unknown fan-out rule 'wide': choose one of top2gap"),
        ({"budget": 0}, "budget is 0: it must be at least 1"),
        ({"depth": 0}, "depth is 0: it must be at least 1"),
        ({"vocab_size": 0}, "vocab_size is 0: it must be at least 1"),
        ({"tree_width": 0}, "tree_width is 0: it must be between 1 and the vocabulary size 50"),
        ({"tree_width": 51}, "tree_width is 51: it must be between 1"),
    ],
)
def test_bad_arguments(change, message):
    arguments = {
        "name": "expand",
        "depth": 3,
        "vocab_size": 50,
        "budget": 8,
        "tree_width": 2,
        **change,
    }
    with pytest.raises(ValueError, match=message) as error:
        make_builder(arguments.pop("name"), **arguments)
    assert "\n" not in str(error.value)


def test_candidates_that_are_too_few():
    builder = make_builder("best_first", depth=3, vocab_size=50, budget=8)
    narrow = Candidates(jnp.zeros((1, 3, 4), jnp.int32), jnp.zeros((1, 3, 4)))
    with pytest.raises(
        ValueError, match="candidates are 3 deep and 4 wide: this builder reads 3 by 7"
    ):
        builder.build(narrow, jnp.array([0]), jnp.array([3]))


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
