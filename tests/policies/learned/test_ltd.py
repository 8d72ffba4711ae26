"""LTD's policies as such: sizes, masks, and what they refuse."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.core.state import Pool, Tree
from jaxspec.policies.compose import compose
from jaxspec.policies.learned.ltd import LtdConfig, make_ltd
from jaxspec.policies.learned.ltd_features import (
    Beyond,
    allowed_sizes,
    depth_inputs,
    depth_observation,
    size_inputs,
    size_observation,
    tree_observation,
)
from jaxspec.policies.protocol import Observation, RoundShape
from jaxspec.policies.rules.static import make_static

SETTINGS = LtdConfig((1, 4, 8), 2, 3, (1, 2), (2, 4, 8))


def layers(inputs: int, bias) -> list:
    return [{"kernel": jnp.zeros((inputs, len(bias))), "bias": jnp.array(bias, jnp.float32)}]


def untrained():
    return layers(depth_inputs(2), (0, 0)), layers(72, (0, 0, 0))


def observation(steps: int, size: int) -> Observation:
    pool = Pool(*[jnp.zeros((2, 14), jnp.int32)] * 3, jnp.zeros((2, 14)))
    tree = Tree(*[jnp.zeros((2, 8))] * 5, jnp.full(2, size, jnp.int32))
    return Observation(jnp.array([5, 9]), jnp.ones(2, bool), jnp.int32(steps), pool=pool, tree=tree)


def test_the_published_sizes():
    assert (depth_inputs(10), size_inputs(10 + 100 * 12)) == (128, 1268)
    assert SETTINGS.size_inputs() == 14 + 58


def test_hidden_states_and_entropies_come_after_what_is_always_there():
    """Width 2, two steps: four scores of the last level, 14 lengths, 14 depths, then E or H."""
    scores, beyond = jnp.arange(-10.0, 0.0), Beyond(jnp.array([0.5, 0.25]), jnp.arange(3) + 7)
    plain = depth_observation(scores, jnp.int32(300), jnp.int32(2), 2)
    for observes, part in (("P+D+L+E", [0.5, 0.25]), ("P+D+L+H", [7, 8, 9]), ("P+D+L", [])):
        given = scores, jnp.int32(300), jnp.int32(2), 2, observes, beyond
        deep, wide = depth_observation(*given), size_observation(*given)
        np.testing.assert_array_equal(deep, [*plain, *part])
        np.testing.assert_array_equal(wide[10 + 58 :], part)
        assert deep.shape == (depth_inputs(2, observes, 3),)
        assert wide.shape == (size_inputs(10, observes, 2, 3),)


@pytest.mark.parametrize(("observes", "weight"), [("P+D+L+E", 0), ("P+D+L+H", 1)])
def test_networks_read_the_frontiers_figures(observes, weight):
    """The first sequence's best node is its second, the other's second slot is empty. The depth
    network goes on above an entropy of the second node, or a number of the best node's hidden
    state, of 0.5; the size network verifies 8 rows above it and 2 below.
    """
    hidden = 2 if weight else 0
    settings = dataclasses.replace(SETTINGS, observes=observes, hidden=hidden)
    read = {name: jnp.zeros((n, k)).at[-1, -1].set(1.0) for name, n, k in (
        ("depth", settings.depth_inputs(), 2), ("size", settings.size_inputs(), 3),
    )}  # fmt: skip
    policy = make_ltd(
        settings,
        [{"kernel": read["depth"], "bias": jnp.array([0.5, 0.0])}],
        [{"kernel": read["size"], "bias": jnp.array([0.5, -1.0, 0.0])}],
    )
    seen = observation(1, 8).replace(
        frontier=jnp.array([[-2.0, -1.0], [-1.0, -jnp.inf]]),
        entropy=jnp.array([[0.1, 0.9], [0.1, 0.9]]),
        hidden=jnp.array([[[0, 0.1], [0, 0.9]], [[0, 0.2], [0, 0.9]]]),
    )
    act = policy.config.functions().act
    assert act.deeper(policy.controls, (), seen).tolist() == [True, False]
    assert act.rows(policy.controls, (), seen).tolist() == [8, 2]
    assert policy.config.functions().needs == {("entropy", "hidden")[weight]}


def test_depth_is_asked_where_it_was_trained():
    for logits, at_asked in (((1.0, 0.0), False), ((0.0, 1.0), True)):
        policy = make_ltd(SETTINGS, layers(depth_inputs(2), logits), layers(72, (0, 0, 0)))
        act = policy.config.functions().act
        answers = [
            np.asarray(act.deeper(policy.controls, (), observation(steps, 8))).tolist()
            for steps in range(4)
        ]
        assert answers == [[True] * 2, [at_asked] * 2, [at_asked] * 2, [True] * 2]


def test_sizes_without_effect_are_not_chosen():
    policy = make_ltd(SETTINGS, layers(depth_inputs(2), (0, 0)), layers(72, (0.0, 1.0, 2.0)))
    rows = policy.config.functions().act.rows
    assert [
        int(rows(policy.controls, (), observation(1, size))[0]) for size in (1, 2, 3, 4, 5, 8)
    ] == [2, 2, 4, 4, 8, 8]
    np.testing.assert_array_equal(
        allowed_sizes((2, 4, 8), jnp.array([2, 3])), [[True, False, False], [True, True, False]]
    )


def test_a_sequence_that_stopped_before_its_batch_has_its_own_depth():
    """The size policy takes eight rows of deep trees and two of shallow ones."""
    last = [{"kernel": jnp.zeros((72, 3)).at[-1, 2].set(1.0), "bias": jnp.array([0.15, -1.0, 0.0])}]
    policy = make_ltd(dataclasses.replace(SETTINGS, depths=()), size=last)
    there = jnp.arange(14) < jnp.array([[2 + 4], [2 + 3 * 4]])
    seen = observation(3, 8)
    seen = seen.replace(pool=seen.pool.replace(logprob=jnp.where(there, -1.0, -jnp.inf)))
    assert np.asarray(policy.config.functions().act.rows(policy.controls, (), seen)).tolist() == [
        2,
        8,
    ]


def test_trees_that_it_was_not_trained_for_are_refused():
    SETTINGS.check(RoundShape(2, 8, 4, nodes=2, candidates=2, steps=3))
    both = compose(make_static(rows=4, widths=SETTINGS.widths), make_ltd(SETTINGS, *untrained()))
    for shape in (RoundShape(2, 8, 15), RoundShape(2, 8, 4, 3, 3, 3), RoundShape(2, 8, 3, 2, 2, 2)):
        for settings in (SETTINGS, both.config):
            with pytest.raises(ValueError, match="give builder 'dynamic/w2' and depth=4"):
                settings.check(shape)
    of_trees = LtdConfig((1, 4, 8), sizes=(4, 8), sees="tree")
    of_trees.check(RoundShape(1, 8, 7))
    with pytest.raises(ValueError, match="reads trees of 8 rows, these have 16: give budget=8"):
        of_trees.check(RoundShape(1, 16, 7))


def test_trees_of_other_builders():
    settings = LtdConfig((1, 4, 8), sizes=(4, 8), sees="tree")
    seen = tree_observation(jnp.array([-0.5, -jnp.inf]), jnp.int32(300))
    np.testing.assert_allclose(seen[:3], [-0.5, -100.0, 0.3], rtol=1e-6)
    assert seen.shape == (60,) and settings.size_inputs() == 7 + 58
    act = make_ltd(settings, size=layers(65, (0.0, 1.0))).config.functions().act
    assert act.deeper is None and act.rows is not None


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: LtdConfig(sees="all"), "sees is 'all': choose one of pool, tree"),
        (lambda: LtdConfig(sizes=(2,), activation="gelu"), "activation is 'gelu'"),
        (lambda: LtdConfig(sizes=(2,), observes="L"), r"observes is 'L': choose one of P, P\+L"),
        (lambda: LtdConfig((1, 4), sizes=(4,), sees="tree", observes="P+D+L+E"), "needs the pool"),
        (
            lambda: dataclasses.replace(SETTINGS, observes="P+D+L+H"),
            "hidden 0: give the size of the drafter's hidden states exactly if H",
        ),
        (lambda: dataclasses.replace(SETTINGS, hidden=8), "hidden 8: give the size"),
        (lambda: LtdConfig(width=2, steps=3, depths=(3,)), "draft steps from 0 to 2"),
        (lambda: LtdConfig(sizes=(4, 2)), "ascending order"),
        (lambda: LtdConfig(), "nothing to decide"),
        (
            lambda: make_ltd(SETTINGS, layers(depth_inputs(2), (0, 0))),
            "names a size policy: give layers",
        ),
        (
            lambda: make_ltd(SETTINGS, layers(9, (0, 0)), layers(72, (0, 0, 0))),
            "the depth policy's layers are",
        ),
    ],
)
def test_refusals(call, message):
    with pytest.raises(ValueError, match=message):
        call()
