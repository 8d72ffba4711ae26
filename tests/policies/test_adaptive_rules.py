"""What adaptive rules, constants and controls decide, on observations made up for the purpose."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.core.state import Accepted, Tree
from jaxspec.costs.round_costs import make_costs
from jaxspec.policies.baselines.random_actions import make_random
from jaxspec.policies.baselines.static import make_static
from jaxspec.policies.compose import compose
from jaxspec.policies.learned import c2t, disco, regression, specdec_plus
from jaxspec.policies.learned.blockpilot import Predictor, make_blockpilot
from jaxspec.policies.protocol import Observation, Outcome, Shape
from jaxspec.policies.rules import ddd, gammatune, svip
from jaxspec.policies.stopping import replace_threshold, take_best

FRONTIER = np.log(np.float32([[0.1, 0.6], [0.5, 0.2]]))
SHAPE = Shape(batch=2, rows=12, depth=6, nodes=2, candidates=2, steps=5)


def seen(steps=0, **fields) -> Observation:
    fields = {"frontier": FRONTIER} | fields
    return Observation(np.array([10, 20]), np.array([True, True]), steps, **fields)


def asked(policy, name: str, observation, state=None):
    functions = policy.config.functions()
    state = functions.init(SHAPE) if state is None else state
    return np.asarray(jax.jit(getattr(functions.act, name))(policy.controls, state, observation))


def outcome(counts, drafted=True, live=(True, True), longest=6) -> Outcome:
    accepted = Accepted(np.zeros((2, longest + 1), np.int32), np.array(counts, np.int32), None)
    return Outcome(np.bool_(drafted), None, None, None, accepted, None, np.array(live))


def test_the_likeliest_node_is_looked_at():
    values = np.arange(12.0).reshape(2, 2, 3)
    assert take_best(values, FRONTIER).tolist() == [[3, 4, 5], [6, 7, 8]]
    assert take_best(values[..., 0], FRONTIER).tolist() == [3, 6]


def test_ddd_looks_after_its_checks_only():
    policy = ddd.make_ddd(threshold=-0.36, checks=(2,), most=4)  # 0.7 and 0.7 in sum: -0.357
    assert asked(policy, "deeper", seen(2)).tolist() == [True, True]
    low = seen(2, frontier=FRONTIER - np.float32([[0.0], [0.1]]))
    assert asked(policy, "deeper", low).tolist() == [True, False]
    assert asked(policy, "deeper", low.replace(steps=3)).tolist() == [True, True]
    assert asked(policy, "deeper", seen(4)).tolist() == [False, False]


def test_svip_looks_at_entropy():
    entropy = np.float32([[9.0, 0.59], [0.61, 0.0]])
    assert asked(svip.make_svip(), "deeper", seen(entropy=entropy)).tolist() == [True, False]
    assert asked(svip.make_svip(most=3), "deeper", seen(2, entropy=entropy)).tolist() == [
        False,
        False,
    ]


def test_gammatune_keeps_a_window_for_every_sequence():
    policy = gammatune.make_gammatune()
    functions = policy.config.functions()
    state = functions.init(SHAPE)
    assert (
        asked(policy, "deeper", seen(1), state).all()
        and not asked(policy, "deeper", seen(2), state).any()
    )
    state = jax.jit(functions.observe)((), state, outcome([4, 1]))
    assert state.window.tolist() == [5, 3] and state.mean.tolist() == pytest.approx([3, 2.1])
    assert asked(policy, "deeper", seen(3), state).tolist() == [True, False]
    # Rounds that did not draft, and finished sequences, teach nothing.
    for nothing in (outcome([1, 1], drafted=False), outcome([1, 1], live=(False, False))):
        assert jax.jit(functions.observe)((), state, nothing).window.tolist() == [5, 3]
    sure = gammatune.make_gammatune(confidence=0.4)
    top = np.float32([[[0.9], [0.3]], [[0.5], [0.1]]])
    assert asked(sure, "deeper", seen(1, top=top), state).tolist() == [False, True]
    assert sure.config.functions().needs == {"top"} and not functions.needs


def test_disco_asks_its_network():
    layers = [{"kernel": np.eye(12, 1, dtype=np.float32), "bias": np.zeros(1, np.float32)}]
    policy = disco.make_disco(
        [{"kernel": np.eye(12, dtype=np.float32), "bias": np.zeros(12, np.float32)}, *layers],
        threshold=0.6,
    )
    top = np.full((2, 2, 10), 0.01, np.float32)
    top[0, 1, 0], top[1, 0, 0] = 0.5, 0.4
    observation = seen(top=top, entropy=np.ones((2, 2), np.float32))
    assert asked(policy, "deeper", observation).tolist() == [
        True,
        False,
    ]  # sigmoid(0.5) = 0.62, sigmoid(0.4) = 0.6 - 0.001
    x = disco.disco_features(top, observation.entropy, jnp.int32(4))
    assert x.shape == (2, 2, 12) and x[0, 0, 10:].tolist() == pytest.approx([1.0, 0.4])
    with pytest.raises(ValueError, match="Disco policy's layers"):
        disco.make_disco([{"kernel": np.zeros((11, 4)), "bias": np.zeros(4)}, *layers])


def test_specdec_plus_multiplies_along_the_path():
    """A head that says sigmoid(first hidden number); what was fed before the first level is the
    root, and certain.
    """
    zero = {"kernel": np.zeros((3, 1), np.float32), "bias": np.zeros(1, np.float32)}
    shortcut = {"kernel": np.eye(3, 1, dtype=np.float32), "bias": np.zeros(1, np.float32)}
    weights = {
        "hidden": zero,
        "shortcut": shortcut,
        "out": {"kernel": np.ones((1, 1), np.float32), "bias": np.zeros(1, np.float32)},
    }
    policy = specdec_plus.make_specdec_plus(weights, threshold=0.5)
    hidden = np.zeros((2, 2, 3), np.float32)
    hidden[0, 1, 0] = 2.0
    first = seen(0, hidden=hidden, carried=np.zeros((2, 2), np.float32))
    assert (
        asked(policy, "carry", first).tolist() == [[0, 0], [0, 0]]
        and asked(policy, "deeper", first).all()
    )
    carried = np.log(np.full((2, 2), 0.6, np.float32))
    later = first.replace(steps=3, carried=carried)
    expected = np.log(0.6) + np.log(1 / (1 + np.exp(-np.array([[0.0, 2.0], [0.0, 0.0]]))))
    np.testing.assert_allclose(asked(policy, "carry", later), expected, rtol=1e-5)
    assert asked(policy, "deeper", later).tolist() == [
        True,
        False,
    ]  # 1 - 0.6 * 0.88 and 1 - 0.6 * 0.5
    assert not asked(policy, "deeper", later.replace(steps=19)).any()


def test_another_threshold_compiles_nothing():
    weights = {
        "disco": disco.init_disco(jax.random.key(0)),
        "c2t": c2t.init_c2t(jax.random.key(0)),
    }
    weights["specdec_plus"] = specdec_plus.init_specdec_plus(jax.random.key(0), 3, 4)
    for make, own in (
        (ddd.make_ddd, ()),
        (svip.make_svip, ()),
        (disco.make_disco, (weights["disco"],)),
        (specdec_plus.make_specdec_plus, (weights["specdec_plus"],)),
        (c2t.make_c2t, (weights["c2t"],)),
    ):
        one, other = make(*own), replace_threshold(make(*own), 0.25)
        assert jax.tree.structure(one) == jax.tree.structure(other)
        assert make(*own, threshold=0.25).config.functions() is one.config.functions()
        assert (
            float(other.controls.threshold)
            == 0.25
            == float(make(*own, threshold=0.25).controls.threshold)
        )
        assert jax.tree.map(jnp.shape, one.controls) == jax.tree.map(jnp.shape, other.controls)


def test_c2t_keeps_the_most_confident():
    chosen = jax.jit(c2t.choose_candidates, static_argnums=0)(
        c2t.C2TConfig(most=2), 0.5, np.array([0.6, 0.9, 0.7, 0.7, 0.4])
    )
    assert chosen.tolist() == [0, 1, 1, 0, 0]
    logprob, entropy = np.log(np.float32([[0.5, 0.2]])), np.float32([[1.0, 3.0]])
    np.testing.assert_allclose(
        c2t.c2t_features("paper", logprob, entropy, 4), [[[0.5, 1, 0.4], [0.2, 3, 0.4]]], rtol=1e-6
    )
    np.testing.assert_allclose(
        c2t.c2t_features("ltd", logprob, None, 4),
        [[[np.log(0.5), 0.4], [np.log(0.2), 0.4]]],
        rtol=1e-6,
    )
    # A network that is as sure as a path is likely: sigmoid(4 p - 2).
    layers = [
        {"kernel": 4 * np.eye(3, 1, dtype=np.float32), "bias": np.zeros(1, np.float32)},
        {"kernel": np.ones((1, 1), np.float32), "bias": np.full(1, -2.0, np.float32)},
    ]
    observation = seen(entropy=np.ones((2, 2), np.float32))
    assert asked(c2t.make_c2t(layers), "keep", observation).tolist() == [
        [False, True],
        [True, False],
    ]
    gone = observation.replace(frontier=np.where([[0, 0], [1, 0]], np.float32(-np.inf), FRONTIER))
    assert asked(c2t.make_c2t(layers, threshold=0.0), "keep", gone).tolist() == [
        [True, True],
        [False, True],
    ]
    with pytest.raises(ValueError, match="reads is 'all': choose one of paper, ltd"):
        c2t.make_c2t(layers, reads="all")


def test_constants():
    policy = make_static(2, 7)
    assert asked(policy, "deeper", seen(1)).all() and not asked(policy, "deeper", seen(2)).any()
    assert asked(policy, "rows", seen()) == 7
    assert make_static(rows=7).config.functions().act.deeper is None
    assert make_static(3, 5).config.functions() is policy.config.functions(), (
        "other constants compile nothing"
    )
    with pytest.raises(ValueError, match="give one"):
        make_static()
    with pytest.raises(ValueError, match="steps is 2 and rows is 0"):
        make_static(2, 0)


def test_random_actions_have_the_given_frequencies():
    policy = make_random({0: 1, 3: 3}, {2: 1, 8: 0, 12: 1})
    functions = policy.config.functions()

    def round_(key, _):
        steps = sum(
            functions.act.deeper(policy.controls, key, seen(i)).astype(jnp.int32) for i in range(5)
        )
        return functions.observe(policy.controls, key, None), (
            steps,
            functions.act.rows(policy.controls, key, seen()),
        )

    _, (steps, rows) = jax.lax.scan(round_, functions.init(SHAPE), None, length=2000)
    assert set(np.unique(steps)) == {0, 3} and set(np.unique(rows)) == {2, 12}
    assert np.mean(np.asarray(steps) == 3) == pytest.approx(0.75, abs=0.03)
    assert np.mean(np.asarray(rows) == 12) == pytest.approx(0.5, abs=0.03)
    assert abs(np.corrcoef(np.ravel(steps), np.ravel(rows))[0, 1]) < 0.06
    with pytest.raises(ValueError, match="one of them above 0"):
        make_random({2: 0})
    with pytest.raises(ValueError, match="give some"):
        make_random()


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
        assert asked(policy, "rows", seen(tree=tree([[1.0, probability, 0.0]] * 2))) == rows
    alone = seen(tree=tree([[1.0, 0.9, 0.5], [1.0, 0.0, 0.0]])).replace(
        live=jnp.array([False, True])
    )
    assert asked(policy, "rows", alone) == 2
    with pytest.raises(ValueError, match="sizes reach 9 rows and round costs 8"):
        regression.make_regression(table, layers, (2, 3, 9))
    x = regression.regression_features(
        np.log(np.float32([[0.5, 0.25, 1e-30]])), np.array([2000]), 5
    )
    np.testing.assert_allclose(x, [[0.5, 0.25, 0, 0, 0, 2.0]], atol=1e-6)


def test_policies_compose():
    pilot = make_blockpilot(
        (3, 5), Predictor([{"kernel": np.ones((4, 2), np.float32), "bias": np.ones(2, np.float32)}])
    )
    sized, deep, window = (
        make_static(rows=7, widths=(1, 7)),
        make_static(2, 9),
        gammatune.make_gammatune(),
    )
    both = compose(pilot, sized, window)
    functions = both.config.functions()
    assert both.config.widths == (1, 7) and functions.needs == {"logits"} and both.state is None
    state = functions.init(SHAPE)
    assert asked(both, "rows", seen(), state) == 7
    assert asked(compose(sized, deep), "rows", seen()) == 7
    assert asked(both, "block", seen(logits=np.ones((2, 4), np.float32)), state).shape == (2,)
    assert (
        asked(both, "deeper", seen(1), state).all()
        and not asked(both, "deeper", seen(2), state).any()
    )
    after = jax.jit(functions.observe)(both.controls, state, outcome([4, 1]))
    assert after[2].window.tolist() == [5, 3]
    assert both.config.observe_seconds(both.controls, state, after, 1.0) is not None
    learned = compose(pilot, window.replace(state=after[2]))
    assert learned.state[1].window.tolist() == [5, 3]
    with pytest.raises(ValueError, match="StaticConfig would never be asked"):
        compose(deep, sized.replace(config=make_static(rows=1).config))
    with pytest.raises(ValueError, match="widths differ"):
        compose(pilot, sized, window.replace(config=gammatune.make_gammatune((1, 2)).config))
    with pytest.raises(ValueError, match="GammaTuneConfig has learned nothing yet"):
        compose(window, make_random(rows={2: 1}).replace(state=jax.random.PRNGKey(0)))
    with pytest.raises(ValueError, match="give at least one policy"):
        compose()
