import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.builders import Proposes, best_first, parse_builder, rank
from jaxspec.builders.candidates import entropy
from jaxspec.builders.scores import Score, make_score, step_costs
from jaxspec.builders.trees.best_first import build_best_first
from jaxspec.builders.trees.expand import build_expand
from jaxspec.core.state import Candidates
from jaxspec.core.tree import validate


@partial(jax.jit, static_argnums=4)
def expand_hybrid(token, logprob, entropies, weights, rows):
    def one(token, logprob, entropies, weight):
        steps = step_costs(Score("hybrid", weight), logprob, entropies, jnp.int32(99))
        return build_expand(token, logprob, jnp.int32(7), jnp.int32(99), rows, steps=steps)

    return jax.vmap(one)(token, logprob, entropies, weights)


@pytest.mark.parametrize("budget", (pytest.param(16, marks=pytest.mark.slow), 64))
def test_equals_every_tree_of_jetspecs_entropy_score(historical, assert_tree, sorted_nodes, budget):
    trees = [
        tree
        for tree in historical.trees
        if tree["algo"] == "entropy_score" and tree["budget"] == budget
    ]
    assert trees
    cases = [tree["case"] for tree in trees]
    candidates = historical.stacked(cases)
    weights = np.array([tree["algo_kwargs"]["lambda_"] for tree in trees], np.float32)
    of_depth = historical.entropies(cases, candidates.token.shape[1])
    built = expand_hybrid(candidates.token, candidates.logprob, of_depth, weights, budget)
    for b, tree in enumerate(trees):
        nodes = historical.expected(tree)
        penalty = weights[b] * np.append(0, np.cumsum(of_depth[b].astype(np.float64)))
        nodes = sorted_nodes(nodes, nodes["scores"] - penalty[nodes["depths"]])
        assert_tree(built, b, nodes, str(tree)[:200])


def brute_force(steps: np.ndarray, logprob: np.ndarray, rows: int) -> dict[str, np.ndarray]:
    """The best nodes by (cost in float64, rank path); tokens are ranks."""
    depth, width = steps.shape
    paths = [path for d in range(depth + 1) for path in itertools.product(range(width), repeat=d)]
    best = sorted((sum(steps[d, r] for d, r in enumerate(path)), path) for path in paths)
    best = [node for node in best if node[0] < np.inf][:rows]
    row = {path: i for i, (_, path) in enumerate(best)}
    return {
        "tokens": np.array([path[-1] if path else -1 for _, path in best]),
        "parents": np.array([row[path[:-1]] if path else -1 for _, path in best]),
        "depths": np.array([len(path) for _, path in best]),
        "scores": np.array([sum(logprob[d, r] for d, r in enumerate(path)) for _, path in best]),
        "costs": np.array([cost for cost, _ in best]),
    }


@pytest.mark.parametrize("score", (Score("entropy"), Score("hybrid", 0.5)), ids=str)
def test_best_first_equals_brute_force(assert_tree, score):
    """Coarse values, exact in binary, so that ties abound; zero entropies make children cost what
    their parents do.
    """
    rng = np.random.default_rng(2)
    logprob = rng.choice(
        [0.0, -0.25, -0.5, -1.0, -3.0, -np.inf], (40, 4, 4), p=[0.1, 0.2, 0.2, 0.2, 0.2, 0.1]
    )
    logprob = -np.sort(-logprob.astype(np.float32))
    of_depth = rng.choice([0.0, 0.5, 1.0, 2.5], (40, 4)).astype(np.float32)
    token = np.tile(np.arange(4, dtype=np.int32), (40, 4, 1))

    @jax.jit
    @jax.vmap
    def build(token, logprob, entropies):
        steps = step_costs(score, logprob, entropies, jnp.int32(4))
        return build_best_first(token, logprob, jnp.int32(0), jnp.int32(4), 24, steps)

    built = build(token, logprob, of_depth)
    costs = np.full((40, 24), np.inf)
    for b in range(40):
        own = np.zeros_like(logprob[b]) if score.name == "entropy" else -logprob[b]
        steps = (
            np.where(np.isfinite(logprob[b]), own, np.inf)
            + (score.weight or score.name == "entropy") * of_depth[b][:, None]
        )
        nodes = brute_force(steps.astype(np.float64), logprob[b].astype(np.float64), 24)
        assert_tree(built, b, nodes, f"{logprob[b]} {of_depth[b]}")
        costs[b, : len(nodes["costs"])] = nodes["costs"]
    validate(built, -costs)


@pytest.mark.parametrize(
    ("name", "score", "width"),
    [("best_first", "entropy", ""), ("expand", "hybrid", "/w3"), ("beam", "entropy", "/w3")],
)
def test_builders_take_scores(name, score, width):
    """Entropy alone cannot tell the nodes of a depth apart: the tree is as wide as the builder
    allows.
    """
    logits = np.random.default_rng(4).normal(size=(2, 4, 30)).astype(np.float32) * 3
    sizes = Proposes(4, 4, 30, 10)
    builder = parse_builder(f"{name}+{score}{width}").bind(sizes)
    assert builder.entropy and not parse_builder(f"{name}{width}").bind(sizes).entropy
    assert builder is parse_builder(f"{name}+{score}{width}").bind(sizes)
    candidates = jax.jit(partial(rank, count=builder.candidates, with_entropy=True))(logits)
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    np.testing.assert_allclose(candidates.entropy, -(p * np.log(p)).sum(-1), rtol=1e-5)
    built = jax.jit(builder.build)(candidates, jnp.array([0, 0]), jnp.array([4, 4]))
    assert built.size.tolist() == [10, 10]
    weight = {"entropy": 1.0, "hybrid": 0.1}[score]
    penalty = np.pad(
        np.cumsum(weight * np.asarray(candidates.entropy, np.float64), axis=1), ((0, 0), (1, 0))
    )
    own = 0 if score == "entropy" else np.asarray(built.logprob)
    validate(built, np.round(own - np.take_along_axis(penalty, np.asarray(built.depth), axis=1), 5))
    if score == "entropy":
        assert int(built.depth.max()) == {"best_first": 1, "beam": 3}[name]


def test_candidates_without_entropies_are_refused():
    builder = best_first("entropy").bind(Proposes(2, 2, 30, 4))
    with pytest.raises(ValueError, match="this builder reads the entropies of the candidates"):
        builder.build(
            Candidates(jnp.zeros((1, 2, 3), jnp.int32), jnp.zeros((1, 2, 3))),
            jnp.array([0]),
            jnp.array([2]),
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "depth"}, "unknown score 'depth': choose one of logprob, entropy, hybrid"),
        (
            {"name": "hybrid", "entropy_weight": -1},
            "entropy_weight is -1: give a number of at least 0",
        ),
        ({"name": "hybrid", "entropy_weight": float("nan")}, "entropy_weight is nan"),
        (
            {"entropy_weight": 0.1},
            "entropy_weight is for score 'hybrid': leave it out with 'logprob'",
        ),
    ],
)
def test_bad_scores(options, message):
    with pytest.raises(ValueError, match=message) as error:
        make_score(**options)
    assert "\n" not in str(error.value)


def test_entropy_of_impossible_and_certain_distributions():
    logprob = np.array([[0, -np.inf], [-np.inf, -np.inf], np.log([0.5, 0.5])], np.float32)
    np.testing.assert_allclose(jax.jit(entropy)(logprob), [0, 0, np.log(2)], rtol=1e-6)
    ranked = jax.jit(partial(rank, count=1, with_entropy=True))(
        np.full((1, 1, 3), -np.inf, np.float32)
    )
    assert ranked.entropy.tolist() == [[0]]
