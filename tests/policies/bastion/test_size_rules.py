"""Sizes chosen against BASTION's golden data, brute force over all trees, and brute force over all
sizes.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden_data import arrays

from jaxspec.builders import Proposes, best_first
from jaxspec.core.state import Candidates
from jaxspec.policies.bastion.size_rules import (
    choose_best_ratio,
    choose_first_decrease,
    choose_printed,
    choose_released,
)

CASES, LATTICES = arrays("bastion", "controller.npz"), arrays("bastion", "tiny_lattice.npz")


def case(kind: str, number: int):
    return lambda name: CASES[f"{kind}{number}_{name}"]


def seconds(read, count: int) -> np.ndarray:
    return read("T_draft") + read("T_aux") + read("T_verify")[:count]


def surrogate(logprob: jax.Array) -> jax.Array:
    """The expected committed tokens [..., N] of each prefix of a tree."""
    return jnp.cumsum(jnp.exp(logprob), axis=-1)


def build(q: np.ndarray, rows: int):
    """The best-first tree of `rows` rows over a lattice of probabilities [depth, K], descending in
    a row.
    """
    token = np.broadcast_to(np.arange(q.shape[1]), q.shape)
    builder = best_first().bind(Proposes(q.shape[0], q.shape[0], q.shape[1], rows))
    width = builder.candidates
    found = Candidates(
        jnp.asarray(token[None, :, :width]), jnp.log(jnp.float32(q))[None, :, :width]
    )
    return jax.jit(builder.build)(found, jnp.array([7]), jnp.array([q.shape[0]]))


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(i, marks=pytest.mark.slow if i > 1 else ())
        for i in range(int(LATTICES["count"]))
    ],
)
def test_every_size_is_the_best_of_all_trees_of_that_size(number):
    """Against an exhaustive enumeration of all prefix-closed trees; the gains fall, so the
    surrogate is concave.
    """
    q, expected = LATTICES[f"t{number}_q"], LATTICES[f"t{number}_best_by_size"]
    tree = build(q, len(expected))
    worth = np.asarray(surrogate(tree.logprob))[0]
    np.testing.assert_allclose(worth[: int(tree.size[0])], expected[: int(tree.size[0])], rtol=1e-5)
    assert int(tree.size[0]) == len(expected)
    assert np.all(np.diff(worth, 2) <= 1e-6)
    np.testing.assert_array_equal(tree.depth[0], LATTICES[f"t{number}_depth"])


def trees_of(q: np.ndarray, size: int):
    """All prefix-closed sets of `size` rank paths, the root included, by growing every one of the
    next smaller size.
    """
    found = {frozenset([()])}
    for _ in range(size - 1):
        found = {
            tree | {(*path, rank)}
            for tree in found
            for path in tree
            for rank in range(q.shape[1])
            if len(path) < q.shape[0] and (*path, rank) not in tree
        }
    return found


def test_no_tree_of_a_random_lattice_is_worth_more():
    q = -np.sort(-np.random.default_rng(5).dirichlet(np.ones(3), 3)[:, :2], axis=1)
    worth = np.asarray(surrogate(build(q, 7).logprob))[0]
    for size in range(1, 7):
        values = [
            sum(np.prod([q[d, r] for d, r in enumerate(path)]) for path in tree)
            for tree in trees_of(q, size)
        ]
        assert worth[size - 1] == pytest.approx(max(values), rel=1e-5)


@pytest.mark.parametrize("number", range(int(CASES["count"])))
def test_every_rule_chooses_what_was_recorded(number):
    read = case("k", number)
    worth, cost = read("Ahat"), seconds(read, len(read("Ahat")))
    np.testing.assert_allclose(worth, np.cumsum(read("rho")), rtol=1e-12)
    np.testing.assert_allclose(worth / cost, read("S_over_LAR"), rtol=1e-9)
    assert (
        int(choose_best_ratio(worth, cost))
        == int(read("N_argmax"))
        == int(np.argmax(worth / cost)) + 1
    )
    assert (
        int(choose_first_decrease(worth, cost))
        == int(read("N_first_decrease"))
        == int(read("N_code_nofloor_step1"))
    )
    assert int(choose_first_decrease(worth, cost, least=32)) == int(read("N_code_before_bucket"))
    assert int(choose_released(worth, cost)) == int(read("N_code_returned"))
    # Algorithm 1 as printed does not count the root, and uses the latency of one row too few.
    assert int(choose_first_decrease(worth[1:], cost[:-1])) == int(read("N_alg1_literal_nonroot"))
    assert int(choose_printed(worth, cost)) == int(read("N_alg1_literal_nonroot")) + 1


@pytest.mark.parametrize("number", range(int(CASES["step_count"])))
def test_on_a_staircase_the_first_decrease_is_far_from_the_best(number):
    read = case("step", number)
    worth, cost = read("Ahat"), seconds(read, len(read("Ahat")))
    for rule, name in ((choose_first_decrease, "first"), (choose_best_ratio, "argmax")):
        size = int(rule(worth, cost))
        assert size == int(read(f"N_{'first_decrease' if name == 'first' else name}"))
        assert worth[size - 1] / cost[size - 1] == pytest.approx(float(read(f"S_{name}")), rel=1e-9)


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(i, marks=pytest.mark.slow if i else ())
        for i in range(min(3, int(CASES["count"])))
    ],
)
def test_the_tree_is_bastions(number):
    """From the drafter's logits: rows in the recorded order, and the released builder's tree as a
    set of paths.
    """
    read = case("k", number)
    logprob = jax.nn.log_softmax(read("logits"), axis=-1)
    value, token = jax.lax.top_k(logprob, min(128, logprob.shape[-1]))
    rows = min(64, len(read("order_token")))
    builder = best_first().bind(Proposes(len(token), len(token), logprob.shape[-1], rows))
    width = builder.candidates
    found = Candidates(token[None, :, :width], value[None, :, :width])
    tree = jax.jit(builder.build)(found, jnp.array([7]), jnp.array([len(token)]))
    found = {name: np.asarray(getattr(tree, name)[0]) for name in ("token", "parent", "depth")}
    for name in found:
        np.testing.assert_array_equal(found[name], read(f"order_{name}")[:rows], name)
    official = len(read("official_token"))
    if official <= rows:
        assert paths(*(found[name][:official] for name in ("token", "parent"))) == paths(
            read("official_token"), read("official_parent")
        )


def paths(token, parent) -> set[tuple[int, ...]]:
    found = []
    for node, above in zip(token.tolist(), parent.tolist(), strict=True):
        found.append((*(found[above] if above >= 0 else ()), node))
    return set(found)


def test_the_worked_example():
    """Section 4.7 of the facts: five rows, and the ratios of every size."""
    q = np.array([[0.6, 0.3], [0.7, 0.2]])
    tree = build(q, 7)
    worth, size = np.asarray(surrogate(tree.logprob))[0], np.arange(1, 8)
    np.testing.assert_allclose(worth, [1, 1.6, 2.02, 2.32, 2.53, 2.65, 2.71], rtol=1e-5)
    cost = 5 + 20 + 0.5 * size + 0.2 * size**2
    np.testing.assert_allclose(
        20 * worth / cost, [0.7782, 1.1940, 1.4276, 1.5364, 1.5569, 1.5057, 1.4151], atol=1e-4
    )
    assert int(choose_best_ratio(worth, cost)) == int(choose_first_decrease(worth, cost)) == 5
    # As printed: 1.6 / 25.7, 2.02 / 26.8, 2.32 / 28.3, 2.53 / 30.2, 2.65 / 32.5: four nodes.
    assert int(choose_printed(worth, cost)) == 4 + 1
    assert [int(choose_printed(worth[:n], cost[:n])) for n in (1, 2, 3)] == [1, 2, 3]
    assert [int(choose_first_decrease(worth[:n], cost[:n])) for n in (1, 2, 3)] == [1, 2, 3]


def test_rules_take_batches_and_trees_with_padding():
    """Rows that do not exist add nothing, so that the first of equal ratios is never among them."""
    logprob = jnp.log(jnp.array([[1.0, 0.9, 0.8, 0.0], [1.0, 0.01, 0.0, 0.0]]))
    chosen = choose_best_ratio(surrogate(logprob), jnp.array([1.0, 1.1, 1.2, 1.2]))
    assert chosen.tolist() == [3, 1]
    assert choose_first_decrease(surrogate(logprob), jnp.ones(4)).tolist() == [3, 2]


def test_brute_force_over_all_sizes():
    rng = np.random.default_rng(0)
    for _, count in itertools.product(range(20), (1, 2, 9)):
        worth, cost = np.cumsum(-np.sort(-rng.random(count))), np.cumsum(rng.random(count)) + 1
        assert int(choose_best_ratio(worth, cost)) == 1 + max(
            range(count), key=lambda i: worth[i] / cost[i]
        )
