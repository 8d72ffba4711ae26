"""The lattice tree against brute force and the reference computation of DSpark's golden data."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden_data import arrays, golden
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file
from slow_cases import slow_except

from jaxspec.builders import Proposes, StepCandidates, Unsuitable, lattice, rank
from jaxspec.builders.trees.lattice import is_exact
from jaxspec.core.tree import validate

ROOT = 3


class Toy:
    """A drafter of one token per step: `row(path)` are the log-probabilities float32 [V] after it."""

    def __init__(self, row, vocab: int, depth: int):
        self.row, self.vocab, self.depth = functools.cache(row), vocab, depth

    def offer(self, paths, count: int) -> StepCandidates:
        logprob = np.stack([self.row(path) for path in paths])[:, None]
        token = np.argsort(-logprob, axis=-1, kind="stable")[..., :count].astype(np.int32)
        return StepCandidates(token, np.take_along_axis(logprob, token, -1))

    def grow(self, builder, budget: int, limit: int | None = None):
        """The tree, whether it is certainly exact, and the nodes drafted from in each step."""
        growth = builder.bind(Proposes(self.depth, 1, self.vocab, budget, steps=True))
        begin, grow, finish, exact = _jitted(growth)
        limit = jnp.int32(self.depth if limit is None else limit)
        pool, nodes = begin(self.offer([()], growth.candidates), limit)
        levels, computed = [], [()]
        for step in range(growth.steps):
            if not nodes.live.any():
                break
            paths = [_path(pool, int(node)) for node in nodes.node]
            for path, source, live in zip(paths, nodes.source, nodes.live, strict=True):
                assert not live or computed[int(source)] == path[:-1], "proposed by another slot"
            computed += paths
            levels.append([path for path, live in zip(paths, nodes.live, strict=True) if live])
            offered = self.offer(paths, growth.candidates)
            pool, nodes = grow(pool, nodes, offered, jnp.int32(step), limit)
        tree = jax.tree.map(lambda x: x[None], finish(pool, jnp.int32(ROOT)))
        validate(tree)
        return tree, bool(exact(pool)), levels

    def best(self, count: int, limit: int | None = None) -> list[tuple[float, tuple]]:
        """(score in float64, path) of the best prefixes of all, ties as the builder orders them."""
        ranks = {
            path: np.argsort(np.argsort(-self.row(path), kind="stable"))
            for d in range(self.depth)
            for path in itertools.product(range(self.vocab), repeat=d)
        }
        found, level = [], [(0.0, ())]
        for _ in range(self.depth if limit is None else limit):
            below = [
                (cost - float(down), i, ranks[path][token], (*path, token))
                for i, (cost, path) in enumerate(level)
                for token, down in enumerate(self.row(path))
                if down > -np.inf
            ]
            level = [(cost, path) for cost, _, _, path in sorted(below)]
            found += level
        best = sorted(range(len(found)), key=lambda i: (found[i][0], i))[:count]
        return [(-found[i][0], found[i][1]) for i in best]


@functools.cache
def _jitted(growth):
    exact = functools.partial(is_exact, rows=growth.rows)
    return tuple(map(jax.jit, (growth.init, growth.grow, growth.finish, exact)))


def _path(pool, node: int) -> tuple[int, ...]:
    path = []
    while node >= 0:
        path.append(int(pool.token[node]))
        node = int(pool.parent[node])
    return tuple(reversed(path))


def _paths(tree) -> list[tuple[int, ...]]:
    found = [()]
    for row in range(1, int(tree.size[0])):
        found.append((*found[int(tree.parent[0, row])], int(tree.token[0, row])))
        assert int(tree.depth[0, row]) == len(found[-1])
    return found[1:]


def _assert_best(toy: Toy, tree, budget: int, limit: int | None = None) -> None:
    expected = toy.best(budget - 1, limit)
    assert _paths(tree) == [path for _, path in expected]
    scores = np.array([score for score, _ in expected])
    np.testing.assert_allclose(tree.logprob[0, 1 : len(scores) + 1], scores, rtol=1e-6)


def markov(seed: int, vocab: int, depth: int, scale: float = 1.5) -> Toy:
    """A random lattice: logits of a depth plus a bias of the previous token."""
    generator = np.random.default_rng([18, seed])
    base = generator.normal(scale=scale, size=(depth, vocab))
    bias = generator.normal(scale=scale, size=(vocab, vocab))

    def row(path):
        logits = base[len(path)] + bias[path[-1] if path else 0]
        return np.asarray(jax.nn.log_softmax(logits.astype(np.float32)))

    return Toy(row, vocab, depth)


# Coarse values make ties, within and across depths; fine ones make near-ties that float32 sums
# would not tell apart.
_COARSE = st.sampled_from([0.0, -0.25, -0.5, -1.0, -3.0, -np.inf])
_FINE = st.floats(-20, 0, width=32).map(lambda x: round(x * 2**20) / 2**20)
_NEAR = st.integers(0, 7).map(lambda n: -1.0 - n * 2.0**-22)


@pytest.mark.parametrize(
    ("vocab", "depth", "budget"),
    slow_except([(4, 4, 12), (6, 3, 9)], [(4, 4, 12), (3, 4, 60), (6, 3, 9)]),
)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_equals_brute_force(vocab, depth, budget, data):
    """Every row depends on the depth and the two last tokens."""
    values = data.draw(st.sampled_from([_COARSE, _FINE, _NEAR]))
    size = depth * vocab**2 * vocab
    pool = data.draw(st.lists(values, min_size=7, max_size=31))
    cells = np.resize(np.array(pool, np.float32), size + data.draw(st.integers(0, 5)))[-size:]
    cells = cells.reshape(depth, vocab, vocab, vocab)
    toy = Toy(lambda path: cells[(len(path), *(0, 0, *path)[-2:])], vocab, depth)
    limit = data.draw(st.integers(0, depth))
    tree, exact, _ = toy.grow(lattice(), budget, limit)
    assert exact
    _assert_best(toy, tree, budget, limit)


@pytest.mark.parametrize("seed", slow_except(range(2), range(4)))
@pytest.mark.thorough
def test_random_lattices(seed):
    vocab, depth, nodes = ((5, 5, 7), (11, 3, 63), (8, 4, 40), (7, 4, 23))[seed]
    toy = markov(seed, vocab, depth)
    tree, exact, levels = toy.grow(lattice(), nodes + 1)
    assert exact
    _assert_best(toy, tree, nodes + 1)
    inner = {path[:-1] for path in _paths(tree)} - {()}
    assert inner <= {path for level in levels for path in level}


def test_drafting_ends_when_no_node_can_matter():
    """One token is far better at every depth, so that no tree is deeper than it is wide."""
    row = np.log(np.array([0.5, 0.3, 0.1, 0.05, 0.05], np.float32))
    toy = Toy(lambda path: row - 20 * (len(path) > 0), 5, 5)
    tree, exact, levels = toy.grow(lattice(), 5)
    assert exact and _paths(tree) == [(0,), (1,), (2,), (3,)]
    assert [len(level) for level in levels] == [3]
    _, _, levels = Toy(lambda path: row - 20 * (len(path) > 1), 5, 5).grow(lattice(), 9)
    assert len(levels) == 2


@pytest.mark.parametrize("budget", [1, 2, 3])
def test_small_budgets(budget):
    toy = markov(0, 5, 3)
    if budget == 1:
        assert lattice().bind(Proposes(3, 1, 5, 1, steps=True)).rows == 1
        return
    tree, _, _ = toy.grow(lattice(), budget)
    _assert_best(toy, tree, budget)


def test_a_vocabulary_of_one_token_makes_a_chain():
    toy = Toy(lambda path: np.array([-0.5], np.float32), 1, 4)
    tree, exact, _ = toy.grow(lattice(), 9)
    assert exact and _paths(tree) == [(0,) * d for d in range(1, 5)]


def test_nodes_without_candidates_get_no_children():
    none = np.full(4, -np.inf, np.float32)
    row = np.log(np.array([0.4, 0.3, 0.2, 0.1], np.float32))
    toy = Toy(lambda path: none if path and path[-1] < 2 else row, 4, 3)
    tree, exact, _ = toy.grow(lattice(), 20)
    assert exact
    _assert_best(toy, tree, 20)
    tree, exact, _ = Toy(lambda path: none, 4, 3).grow(lattice(), 20)
    assert exact and int(tree.size[0]) == 1


@pytest.mark.parametrize(
    "builder", [lattice(width=2), lattice(candidates=3), lattice(2, 3)], ids=str
)
@pytest.mark.thorough
def test_a_narrow_tree_says_whether_it_is_exact(builder):
    """The certificate never lies. It holds for peaked distributions, and fails for flat ones."""
    said = []
    for seed, scale in itertools.product(range(4), (0.3, 6.0)):
        toy = markov(seed, 6, 4, scale)
        tree, exact, _ = toy.grow(builder, 5)
        right = _paths(tree) == [path for _, path in toy.best(4)]
        assert right or not exact
        said.append(exact)
    assert True in said and False in said


def test_a_wide_enough_tree_is_exact():
    toy = markov(1, 6, 4)
    whole, _, _ = toy.grow(lattice(), 12)
    tree, exact, _ = toy.grow(lattice(width=10, candidates=6), 12)
    assert exact
    jax.tree.map(np.testing.assert_array_equal, tree, whole)


def test_long_lists_are_chosen_from_in_groups():
    """130 nodes have thousands of children that can matter."""
    toy = markov(2, 150, 2, 0.5)
    tree, _, _ = toy.grow(lattice(), 131)
    _assert_best(toy, tree, 131)


@pytest.fixture(scope="module")
def head():
    weights = load_file(golden("dspark", "draft_vanilla", "model.safetensors"))
    return weights["markov_head.markov_w1.weight"], weights["markov_head.markov_w2.weight"]


@pytest.mark.golden
def test_equals_the_reference_lattices(head):
    """`lattice.npz`: base logits of a block, and the Markov head of DSpark's vanilla drafter."""
    (w1, w2), data = head, arrays("dspark", "lattice.npz")
    for case, (base, anchor) in enumerate(zip(data["base_logits"], data["anchor"], strict=True)):

        def row(path, base=base, anchor=anchor):
            latent = w1[path[-1] if path else anchor]
            logits = base[len(path)] + np.einsum("vr,r->v", w2, latent)
            whole = rank(jnp.asarray(logits)[None, None], logits.shape[0])
            return np.asarray(
                jnp.zeros(logits.shape).at[whole.token[0, 0]].set(whole.logprob[0, 0])
            )

        depth, vocab = base.shape
        count = data["paths"].shape[1]
        tree, exact, _ = Toy(row, vocab, depth).grow(lattice(), count + 1)
        assert exact
        expected = [tuple(path[path >= 0]) for path in data["paths"][case]]
        if data["min_score_gap"][case] >= 1e-5:
            assert _paths(tree) == expected
            np.testing.assert_array_equal(tree.parent[0, 1:], data["parent"][case])
            np.testing.assert_array_equal(tree.depth[0, 1:], data["depth"][case])
        assert set(_paths(tree)) == set(expected)
        np.testing.assert_allclose(tree.logprob[0, 1:], data["score"][case], atol=1e-5)


@pytest.mark.parametrize("sizes", [Proposes(4, 4, 12, 8), Proposes(4, 2, 12, 8, steps=True)])
def test_drafters_of_several_tokens_are_refused(sizes):
    with pytest.raises(Unsuitable, match="one token at a time; of one block, 'best_first'"):
        lattice().bind(sizes)


def test_counts_must_be_positive():
    with pytest.raises(ValueError, match="candidates is 0: give a whole number of at least 1"):
        lattice(candidates=0)
