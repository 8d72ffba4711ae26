"""What DDD, SVIP and GammaTune decide."""

import jax
import numpy as np
import pytest
from observations import FRONTIER, SHAPE, ask, make_outcome, make_seen

from jaxspec.policies.rules import ddd, gammatune, svip


def test_ddd_looks_after_its_checks_only():
    policy = ddd.make_ddd(threshold=-0.36, checks=(2,), most=4)  # 0.7 and 0.7 in sum: -0.357
    assert ask(policy, "deeper", make_seen(2)).tolist() == [True, True]
    low = make_seen(2, frontier=FRONTIER - np.float32([[0.0], [0.1]]))
    assert ask(policy, "deeper", low).tolist() == [True, False]
    assert ask(policy, "deeper", low.replace(steps=3)).tolist() == [True, True]
    assert ask(policy, "deeper", make_seen(4)).tolist() == [False, False]


def test_svip_looks_at_entropy():
    entropy = np.float32([[9.0, 0.59], [0.61, 0.0]])
    assert ask(svip.make_svip(), "deeper", make_seen(entropy=entropy)).tolist() == [True, False]
    assert ask(svip.make_svip(most=3), "deeper", make_seen(2, entropy=entropy)).tolist() == [
        False,
        False,
    ]


def test_gammatune_keeps_a_window_for_every_sequence():
    policy = gammatune.make_gammatune()
    functions = policy.config.functions()
    state = functions.init(SHAPE)
    assert (
        ask(policy, "deeper", make_seen(1), state).all()
        and not ask(policy, "deeper", make_seen(2), state).any()
    )
    state = jax.jit(functions.observe)((), state, make_outcome([4, 1]))
    assert state.window.tolist() == [5, 3] and state.mean.tolist() == pytest.approx([3, 2.1])
    assert ask(policy, "deeper", make_seen(3), state).tolist() == [True, False]
    # Rounds that did not draft, and finished sequences, teach nothing.
    for nothing in (make_outcome([1, 1], drafted=False), make_outcome([1, 1], live=(False, False))):
        assert jax.jit(functions.observe)((), state, nothing).window.tolist() == [5, 3]
    sure = gammatune.make_gammatune(confidence=0.4)
    top = np.float32([[[0.9], [0.3]], [[0.5], [0.1]]])
    assert ask(sure, "deeper", make_seen(1, top=top), state).tolist() == [False, True]
    assert sure.config.functions().needs == {"top"} and not functions.needs
