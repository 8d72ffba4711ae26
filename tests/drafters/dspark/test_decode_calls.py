"""Decode calls with the trained golden drafters: the text is the target's, a second call compiles
nothing, and the loop stays on the device.
"""

import re

import jax.numpy as jnp
import pytest
from golden_data import SHIPPED
from short_models import shorten
from slow_cases import slow_except

import jaxspec
from jaxspec.call.options import group_options
from jaxspec.call.session import prepare, run_prefill
from jaxspec.core.runtime.compilations import compilations
from jaxspec.round.loop import run

GOLDEN = SHIPPED / "dspark"
PROMPTS = [[124, 85, 121, 59, 47], [7], list(range(40, 75))]


@pytest.fixture(scope="module")
def params():
    kinds = ("vanilla", "gated", "rnn", "dflash")
    drafters = {kind: GOLDEN / f"draft_{kind}" for kind in kinds}
    return shorten(jaxspec.load(GOLDEN / "target", drafter=drafters, dtype="float32"))


CALLS = [
    ("rnn", {"builder": "chain", "depth": 3, "temperature": 1.0, "seed": 5}),
    ("gated", {"builder": "chain"}),
    ("rnn", {"builder": "dynamic", "budget": 12}),
    ("vanilla", {"builder": "dynamic", "budget": 12, "temperature": 1.0, "seed": 5}),
    ("vanilla", {"builder": "chain", "depth": 9}),
    ("dflash", {"builder": "dynamic", "budget": 12, "temperature": 0.7, "top_p": 0.9}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("method", "options"), slow_except(CALLS[:1], CALLS))
def test_the_text_is_the_targets(params, method, options):
    sampling = {name: options[name] for name in ("temperature", "seed", "top_p") if name in options}
    plain = jaxspec.decode(
        params, PROMPTS, drafter="ar", max_new_tokens=40, **group_options(**sampling)
    )
    drafted = jaxspec.decode(
        params, PROMPTS, drafter=method, max_new_tokens=40, **group_options(**options)
    )
    assert [out.tokens for out in drafted] == [out.tokens for out in plain]
    assert sum(out.stats.rounds for out in drafted) < 0.9 * 39 * len(PROMPTS)


@pytest.mark.thorough
def test_drawn_chains_are_accepted_by_rejection(params):
    """Acceptance 'rejection' draws the chain from the conditioned distribution."""
    options = {"acceptance": "rejection", "temperature": 1.0, "builder": "chain"}
    outs = jaxspec.decode(
        params, PROMPTS, drafter="rnn", max_new_tokens=40, **group_options(**options)
    )
    assert all(out.stats.emitted == 40 for out in outs)
    assert sum(out.stats.rounds for out in outs) < 0.9 * 39 * len(PROMPTS)


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_second_call_compiles_nothing(params, temperature):
    options = {"drafter": "rnn", "builder": "dynamic", "budget": 12}
    jaxspec.decode(
        params, [5, 6, 7], temperature=temperature, max_new_tokens=30, **group_options(**options)
    )
    before = compilations()
    more = {"temperature": 0.8 * temperature, "seed": 8, "stop": [3]}
    jaxspec.decode(params, list(range(20)), max_new_tokens=41, **more, **group_options(**options))
    assert compilations() == before


@pytest.mark.slow
def test_the_loop_is_on_the_device(params):
    options = {"drafter": "rnn", "builder": "dynamic", "budget": 12, "temperature": 1.0}
    session = prepare(params, [1, 2, 3], max_new_tokens=30, **group_options(**options))
    state = run_prefill(session)
    lowered = run.lower(params, session.request, state, jnp.int32(4), config=session.config)
    text = lowered.compile().as_text().lower().replace("hostname", "")
    assert " while(" in text and not re.search("callback|infeed|outfeed|host", text)
