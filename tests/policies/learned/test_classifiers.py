"""What Disco, SpecDec++ and C2T decide."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from observations import FRONTIER, ask, make_seen

from jaxspec.policies.learned import c2t, disco, specdec_plus


def test_disco_asks_its_network():
    layers = [{"kernel": np.eye(12, 1, dtype=np.float32), "bias": np.zeros(1, np.float32)}]
    policy = disco.make_disco(
        [{"kernel": np.eye(12, dtype=np.float32), "bias": np.zeros(12, np.float32)}, *layers],
        threshold=0.6,
    )
    top = np.full((2, 2, 10), 0.01, np.float32)
    top[0, 1, 0], top[1, 0, 0] = 0.5, 0.4
    observation = make_seen(top=top, entropy=np.ones((2, 2), np.float32))
    assert ask(policy, "deeper", observation).tolist() == [
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
    first = make_seen(0, hidden=hidden, carried=np.zeros((2, 2), np.float32))
    assert (
        ask(policy, "carry", first).tolist() == [[0, 0], [0, 0]]
        and ask(policy, "deeper", first).all()
    )
    carried = np.log(np.full((2, 2), 0.6, np.float32))
    later = first.replace(steps=3, carried=carried)
    expected = np.log(0.6) + np.log(1 / (1 + np.exp(-np.array([[0.0, 2.0], [0.0, 0.0]]))))
    np.testing.assert_allclose(ask(policy, "carry", later), expected, rtol=1e-5)
    assert ask(policy, "deeper", later).tolist() == [
        True,
        False,
    ]  # 1 - 0.6 * 0.88 and 1 - 0.6 * 0.5
    assert not ask(policy, "deeper", later.replace(steps=19)).any()


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
    observation = make_seen(entropy=np.ones((2, 2), np.float32))
    assert ask(c2t.make_c2t(layers), "keep", observation).tolist() == [
        [False, True],
        [True, False],
    ]
    gone = observation.replace(frontier=np.where([[0, 0], [1, 0]], np.float32(-np.inf), FRONTIER))
    assert ask(c2t.make_c2t(layers, threshold=0.0), "keep", gone).tolist() == [
        [True, True],
        [False, True],
    ]
    with pytest.raises(ValueError, match="reads is 'all': choose one of paper, ltd"):
        c2t.make_c2t(layers, reads="all")
