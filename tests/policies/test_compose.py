"""One policy of several."""

import jax
import numpy as np
import pytest
from observations import SHAPE, ask, make_outcome, make_seen

from jaxspec.policies.compose import compose
from jaxspec.policies.learned.blockpilot import Predictor, make_blockpilot
from jaxspec.policies.rules import gammatune
from jaxspec.policies.rules.random_actions import make_random
from jaxspec.policies.rules.static import make_static


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
    assert ask(both, "rows", make_seen(), state) == 7
    assert ask(compose(sized, deep), "rows", make_seen()) == 7
    assert ask(both, "block", make_seen(logits=np.ones((2, 4), np.float32)), state).shape == (2,)
    assert (
        ask(both, "deeper", make_seen(1), state).all()
        and not ask(both, "deeper", make_seen(2), state).any()
    )
    after = jax.jit(functions.observe)(both.controls, state, make_outcome([4, 1]))
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
