"""Lattice trees from foreseen states: they are the exact trees, whether the certificate holds or
not.
"""

import functools

import jax.numpy as jnp
import numpy as np
import pytest
from golden_data import arrays, golden, records
from lattice_toy import TABLE, best_paths, draft_trees, paths_of
from safetensors.numpy import load_file
from slow_cases import slow_except

import jaxspec
from jaxspec.builders import Proposes, lattice
from jaxspec.call.options import group_options
from jaxspec.policies.rules.svip import make_svip
from jaxspec.round import lookahead

BATCH, DEPTH, VOCAB, BUDGET = 2, 4, 7, 16


@pytest.fixture(scope="module", autouse=True)
def table():
    jaxspec.drafters.register(TABLE)
    yield
    jaxspec.drafters.unregister("table")


def heads(seed, peaked, batch=BATCH, vocab=VOCAB):
    """(base [B, K, V], bias [V, V], roots [B], noise [B, K, V]) of a random lattice."""
    generator = np.random.default_rng([18, seed])
    scale = 3.0 if peaked else 0.7
    base = generator.normal(scale=scale, size=(batch, DEPTH, vocab))
    bias = generator.normal(scale=0.6 * scale, size=(vocab, vocab))
    noise = generator.gumbel(size=base.shape)
    root = generator.integers(vocab, size=batch)
    return (*(x.astype(np.float32) for x in (base, bias)), root, noise.astype(np.float32))


def assert_equal(tree, dense):
    for name in ("size", "token", "parent", "depth", "ancestors"):
        np.testing.assert_array_equal(getattr(tree, name), getattr(dense, name), err_msg=name)
    np.testing.assert_allclose(tree.logprob, dense.logprob, rtol=1e-6, atol=3e-6)


@pytest.mark.parametrize("sampled", slow_except([True], [False, True]), ids=["greedy", "coupled"])
@pytest.mark.parametrize("peaked", [False, True], ids=["flat", "peaked"])
@pytest.mark.thorough
def test_trees_are_exact_with_and_without_the_certificate(peaked, sampled):
    """Against the dense tree row by row, and against brute force."""
    said = []
    for seed, tokens in [(seed, tokens) for seed in range(6) for tokens in (2, 4, 6)]:
        base, bias, root, noise = heads(seed, peaked)
        options = {"budget": BUDGET, "scale": 0.8, "temperature": 0.9 * sampled}
        given = base, bias, root, noise if sampled else None
        tree, fell_back = draft_trees(*given, builder=lattice(shortlist=tokens), **options)
        dense, _ = draft_trees(*given, builder=lattice(), **options)
        assert_equal(tree, dense)
        said.append(bool(fell_back))
        for i in range(BATCH):
            expected = best_paths(
                base[i], bias, root[i], BUDGET - 1, noise[i] if sampled else None, 0.8,
                0.9 if sampled else 1.0,
            )  # fmt: skip
            assert paths_of(tree, i) == [path for _, path in expected]
            scores = [score for score, _ in expected]
            np.testing.assert_allclose(tree.logprob[i, 1:], scores, rtol=1e-5, atol=3e-6)
    assert True in said and False in said


@pytest.mark.slow
@pytest.mark.parametrize("sampled", slow_except([True], [False, True]), ids=["greedy", "coupled"])
def test_the_certificate_never_lies(sampled):
    """Few of many states are foreseen. With all tokens in the shortlist they are the right ones:
    the best paths to the states are then exact, and no more states than nodes matter.
    """
    vocab, said = 40, {6: [], 20: [], 40: []}
    for seed in range(40):
        *given, noise = heads(seed, peaked=True, batch=1, vocab=vocab)
        given.append(noise if sampled else None)
        options = {"budget": BUDGET, "temperature": 1.5 * sampled}
        dense, _ = draft_trees(*given, builder=lattice(), **options)
        for tokens, fallbacks in said.items():
            tree, fell_back = draft_trees(*given, builder=lattice(shortlist=tokens), **options)
            assert_equal(tree, dense)
            fallbacks.append(bool(fell_back))
    assert 0 == sum(said[40]) <= sum(said[20]) < sum(said[6]) < len(said[6])


@pytest.mark.thorough
def test_one_uncertain_sequence_makes_the_batch_fall_back():
    base, bias, root, _ = heads(0, peaked=True)
    bias = np.zeros_like(bias)
    base[0], base[1] = 9 * np.eye(DEPTH, VOCAB), 0.0
    builder = lattice(shortlist=2)
    alone = [
        bool(
            draft_trees(base[i : i + 1], bias, root[i : i + 1], None, builder=builder, budget=5)[1]
        )
        for i in range(2)
    ]
    assert alone == [False, True]
    tree, fell_back = draft_trees(base, bias, root, None, builder=builder, budget=5)
    assert fell_back
    assert_equal(tree, draft_trees(base, bias, root, None, builder=lattice(), budget=5)[0])


@pytest.mark.parametrize(
    ("budget", "falls_back"),
    slow_except([(4, True)], [(3, False), (4, True), (5, True)]),
)
def test_children_of_the_last_node_alone_do_not_matter(budget, falls_back):
    """The path 0, 6, 5 is nearly certain, and the token before brings in 6 and 5 from outside of
    the shortlist. So 6 is not foreseen, which matters unless it is the tree's last node.
    """
    base, bias = np.zeros((1, DEPTH, VOCAB), np.float32), np.zeros((VOCAB, VOCAB), np.float32)
    base[:, :, :2] = 2
    base[0, 0, 0], bias[0, 6], bias[6, 5] = 12, 9, 8
    given = base, bias, jnp.array([3]), None
    tree, fell_back = draft_trees(*given, builder=lattice(shortlist=2), budget=budget)
    assert bool(fell_back) == falls_back
    assert paths_of(tree)[:3] == [(0,), (0, 6), (0, 6, 5)][: budget - 1]
    assert_equal(tree, draft_trees(*given, builder=lattice(), budget=budget)[0])


def test_without_the_certificate_trees_would_be_wrong(monkeypatch):
    """The same trees are not exact if every round is called certain."""

    def always(foreseen, growth, pool, limit):
        return jnp.ones(limit.shape, bool)

    draft_trees.clear_cache()
    monkeypatch.setattr("jaxspec.round.draft.is_certain", always)
    base, bias, root, _ = heads(0, peaked=False)
    tree, _ = draft_trees(base, bias, root, None, builder=lattice(shortlist=2), budget=BUDGET)
    draft_trees.clear_cache()
    expected = best_paths(base[0], bias, root[0], BUDGET - 1)
    assert paths_of(tree) != [path for _, path in expected]


@pytest.mark.golden
@pytest.mark.thorough
def test_equals_the_reference_lattices():
    """`lattice.npz`, with the Markov head of DSpark's vanilla drafter."""
    weights = load_file(golden("dspark", "draft_vanilla", "model.safetensors"))
    bias = weights["markov_head.markov_w1.weight"] @ weights["markov_head.markov_w2.weight"].T
    data = arrays("dspark", "lattice.npz")
    said = []
    for tokens in (64, 160):
        tree, fell_back = draft_trees(
            data["base_logits"], bias, data["anchor"], None,
            builder=lattice(shortlist=tokens), budget=data["paths"].shape[1] + 1,
        )  # fmt: skip
        said.append(bool(fell_back))
        for case, paths in enumerate(data["paths"]):
            expected = [tuple(path[path >= 0].tolist()) for path in paths]
            if data["min_score_gap"][case] >= 1e-5:
                assert paths_of(tree, case) == expected
            assert set(paths_of(tree, case)) == set(expected)
            np.testing.assert_allclose(tree.logprob[case, 1:], data["score"][case], atol=1e-5)
    assert said == [True, False]


@functools.cache
def load(kind):
    target, drafter = golden("dspark", "target"), golden("dspark", f"draft_{kind}")
    return jaxspec.load(target, drafter={"dspark": drafter}, dtype="float32")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "temperature", "tokens"),
    [
        ("vanilla", 0.0, 160),
        pytest.param("gated", 1.0, 160, marks=pytest.mark.slow),
        pytest.param("gated", 0.0, 8, marks=pytest.mark.slow),
    ],
)
def test_rounds_are_those_of_the_dense_lattice(kind, temperature, tokens):
    prompt = max((trace["prompt"] for trace in records("dspark", "decode.json")), key=len)
    options = {"max_new_tokens": 12, "temperature": temperature, "seed": 3, "drafter": "dspark"}
    dense, out = (
        jaxspec.decode(
            load(kind),
            prompt,
            speculation=jaxspec.Speculation(builder=builder),
            budget=24,
            trace=True,
            **options,
        )
        for builder in ("lattice", f"lattice/shortlist={tokens}")
    )
    assert len(out.rounds) == len(dense.rounds)
    for one, other in zip(out.rounds, dense.rounds, strict=True):
        np.testing.assert_array_equal(one.tree.token, other.tree.token)
        np.testing.assert_array_equal(one.tree.parent, other.tree.parent)
        np.testing.assert_allclose(one.tree.logprob, other.tree.logprob, atol=1e-4)
    plain = jaxspec.decode(load(kind), prompt, **group_options(**options | {"drafter": "ar"}))
    assert out.tokens == plain.tokens


def test_other_drafters_are_refused():
    sizes = Proposes(4, 1, VOCAB, BUDGET, steps=True)
    with pytest.raises(ValueError, match="DSpark with a vanilla or gated head: leave 'shortlist'"):
        lattice(shortlist=4).bind(sizes)
    with pytest.raises(ValueError, match="a shortlist needs a drafter"):
        jaxspec.decode(
            load("rnn"),
            [1, 2],
            drafter="dspark",
            speculation=jaxspec.Speculation(builder="lattice/shortlist=8"),
        )
    with pytest.raises(ValueError, match="shortlist is 0: give a whole number of at least 1"):
        lattice(shortlist=0)


def test_policies_that_stop_between_levels_are_refused():
    with pytest.raises(ValueError, match="leave 'shortlist' or the policy out"):
        jaxspec.decode(
            load("vanilla"),
            [1, 2],
            drafter="dspark",
            speculation=jaxspec.Speculation(builder="lattice/shortlist=8", policy=make_svip()),
        )


def test_states_are_ranked_by_their_best_paths():
    """Shares of a toy of two depths, by hand: the root's tokens, then what follows each of them."""
    first, edges = (
        jnp.log(jnp.array([[0.6, 0.3]])),
        jnp.log(jnp.array([[[[0.1, 0.5], [0.9, 0.1]]]])),
    )
    found = jnp.exp(lookahead._best_paths(first, edges))
    np.testing.assert_allclose(found, [[[0.6, 0.3], [0.27, 0.3]]], rtol=1e-6)
