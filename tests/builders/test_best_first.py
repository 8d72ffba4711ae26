import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden_data import records
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxspec.builders import Proposes, best_first
from jaxspec.builders.trees.best_first import build_best_first
from jaxspec.core.state import Candidates
from jaxspec.core.tree import validate

# Of the golden trees, the root not counted.
BUDGETS = sorted({tree["budget"] for tree in records("ddtree", "trees_index.json")["trees"]})


@pytest.mark.parametrize("budget", BUDGETS)
def test_equals_every_ddtree(ddtree, assert_tree, budget):
    trees = [tree for tree in ddtree.trees if tree["budget"] == budget]
    candidates = ddtree.stacked([tree["case"] for tree in trees])
    built = build_batch(
        candidates.token, candidates.logprob, jnp.int32(7), jnp.int32(99), budget + 1
    )
    validate(built)
    for b, tree in enumerate(trees):
        assert_tree(built, b, ddtree.expected(tree), str(tree))


@pytest.mark.parametrize("case", ("one_1x32", "flat_7x64", "wide_3x1000", "ties_6x40"))
def test_builder_equals_ddtree_at_its_own_shape(ddtree, assert_tree, case):
    tree = next(tree for tree in ddtree.trees if tree["case"] == case and tree["budget"] == 64)
    depth, vocab = ddtree.logits(case).shape
    builder = best_first().bind(Proposes(depth, depth, vocab, 65))
    assert builder.rows == tree["n"]
    candidates = jax.tree.map(lambda x: x[None], ddtree.candidates(case))
    built = jax.jit(builder.build)(candidates, jnp.array([7]), jnp.array([depth]))
    assert built.token.shape == (1, builder.rows) and int(built.token[0, 0]) == 7
    assert_tree(built, 0, ddtree.expected(tree))
    visible = (built.ancestors[0, :17, :1] >> np.arange(17, dtype=np.uint32)) & 1
    np.testing.assert_array_equal(visible, ddtree.arrays[f"visibility__{case}"])


def test_a_batch_is_assembled_without_scatters(ddtree):
    """On a CPU XLA makes a loop of each."""
    candidates = jax.tree.map(lambda x: x[None].repeat(2, 0), ddtree.candidates("flat_7x64"))
    builder = best_first().bind(Proposes(7, 7, 64, 9))
    built = jax.make_jaxpr(builder.build)(candidates, jnp.array([7, 8]), jnp.array([7, 7]))
    assert "scatter" not in str(built)


def brute_force(logprob: np.ndarray, budget: int, limit: int) -> dict[str, np.ndarray]:
    """The best nodes by (score in float64, rank path), of all that there are; tokens are ranks."""
    depth, width = logprob.shape
    steps = logprob.astype(np.float64)
    paths = [
        path
        for d in range(min(depth, limit) + 1)
        for path in itertools.product(range(width), repeat=d)
    ]
    scored = [(-sum(steps[d, r] for d, r in enumerate(path)), path) for path in paths]
    best = sorted(node for node in scored if node[0] < np.inf)[: budget + 1]
    row = {path: i for i, (_, path) in enumerate(best)}
    return {
        "tokens": np.array([path[-1] if path else -1 for _, path in best]),
        "parents": np.array([row[path[:-1]] if path else -1 for _, path in best]),
        "depths": np.array([len(path) for _, path in best]),
        "scores": np.array([-cost for cost, _ in best]),
    }


# Coarse values make ties, within and across depths; fine ones make near-ties that float32 sums
# would not tell apart.
_COARSE = st.sampled_from([0.0, -0.25, -0.5, -1.0, -3.0, -np.inf])
_FINE = st.floats(-20, 0, width=32).map(lambda x: round(x * 2**20) / 2**20)
_NEAR = st.integers(0, 7).map(lambda n: -1.0 - n * 2.0**-22)


@partial(jax.jit, static_argnums=4)
def build_batch(token, logprob, root, limit, rows):
    return jax.vmap(partial(build_best_first, rows=rows), in_axes=(0, 0, None, None))(
        token, logprob, root, limit
    )


@pytest.mark.parametrize(("shape", "budget"), [((4, 5), 11), ((3, 8), 40), ((6, 2), 30)])
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_equals_brute_force(assert_tree, shape, budget, data):
    values = data.draw(st.sampled_from([_COARSE, _FINE, _NEAR]))
    cells = data.draw(st.lists(values, min_size=shape[0] * shape[1], max_size=shape[0] * shape[1]))
    limit = data.draw(st.integers(0, shape[0]))
    logprob = -np.sort(-np.array(cells, np.float32).reshape(shape), axis=1)
    token = np.tile(np.arange(shape[1], dtype=np.int32), (shape[0], 1))
    built = build_batch(token[None], logprob[None], jnp.int32(0), jnp.int32(limit), budget + 1)
    validate(built)
    assert_tree(built, 0, brute_force(logprob, budget, limit), f"{logprob} {limit}")


def test_depth_limit_is_per_sequence():
    builder = best_first().bind(Proposes(3, 3, 9, 6))
    logprob = np.log(np.tile(np.array([0.6, 0.2, 0.1, 0.05, 0.03], np.float32), (2, 3, 1)))
    token = np.tile(np.arange(5, dtype=np.int32), (2, 3, 1))
    built = jax.jit(builder.build)(Candidates(token, logprob), jnp.array([3, 4]), jnp.array([0, 2]))
    validate(built)
    assert built.size.tolist() == [1, 6]
    assert built.depth.max(axis=1).tolist() == [0, 2]
    assert built.token[:, 0].tolist() == [3, 4]


def test_very_improbable_candidates_are_used_in_order():
    builder = best_first().bind(Proposes(2, 2, 3, 13))
    logprob = np.array([[[-1e-7, -300.0, -2000.0], [0.0, -900.0, -1e30]]], np.float32)
    token = np.tile(np.arange(3, dtype=np.int32), (1, 2, 1))
    built = jax.jit(builder.build)(Candidates(token, logprob), jnp.array([0]), jnp.array([2]))
    validate(built)
    assert int(built.size[0]) == 13
    np.testing.assert_allclose(
        built.logprob[0, :8], [0, -1e-7, -1e-7, -300, -300, -900, -1200, -2000], rtol=1e-6
    )
