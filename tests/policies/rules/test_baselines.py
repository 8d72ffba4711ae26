"""Constant and random decisions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from observations import SHAPE, ask, make_seen

from jaxspec.policies.rules.random_actions import make_random
from jaxspec.policies.rules.static import make_static


def test_constants():
    policy = make_static(2, 7)
    assert (
        ask(policy, "deeper", make_seen(1)).all() and not ask(policy, "deeper", make_seen(2)).any()
    )
    assert ask(policy, "rows", make_seen()) == 7
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
            functions.act.deeper(policy.controls, key, make_seen(i)).astype(jnp.int32)
            for i in range(5)
        )
        return functions.observe(policy.controls, key, None), (
            steps,
            functions.act.rows(policy.controls, key, make_seen()),
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
