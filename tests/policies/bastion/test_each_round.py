"""BASTION's correction after every round, with a clock of its own."""

import itertools

import jax
import numpy as np
import pytest
from golden_data import SHIPPED
from short_models import shorten

import jaxspec
from jaxspec.call import observed_rounds
from jaxspec.call.options import group_options
from jaxspec.call.session import prepare
from jaxspec.costs.roofline_fit import correct_running
from jaxspec.costs.round_costs import make_costs
from jaxspec.policies.bastion.controller import ControllerConfig, make_bastion
from jaxspec.policies.compose import compose
from jaxspec.policies.rules.static import make_static
from jaxspec.round.loop import run

GOLDEN = SHIPPED / "dflash"
TABLE = make_costs((1, 12), (0, 512), 2.0, [[4.0, 8.0], [6.0, 12.0]])
OPTIONS = {"drafter": "dflash", "builder": "best_first", "budget": 12, "max_new_tokens": 24}
PROMPT, RATE = [117, 142, 122, 64, 240, 19], 0.2
TOOK = (9.0, 30.0, 1.0, 14.0, 8.0, 8.0)


@pytest.fixture(scope="module")
def params():
    return shorten(jaxspec.load(GOLDEN / "target", drafter={"dflash": GOLDEN / "drafter"}))


@pytest.fixture
def observed(monkeypatch):
    """Rounds that take `TOOK` seconds in turn: list of (verification's seconds, its prediction
    without the factor, predicted seconds of the round, factor of the round, factor after it).
    """
    clock = itertools.chain.from_iterable((0.0, took) for took in itertools.cycle(TOOK))
    monkeypatch.setattr(observed_rounds, "perf_counter", clock.__next__)
    seen, own = [], ControllerConfig.observe_seconds

    def spy(config, controls, before, after, seconds):
        assert int(after.rounds) - int(before.rounds) == 1
        new = own(config, controls, before, after, seconds)
        drafting, verify = map(float, after.last)
        assert drafting == 2.0, "the factor does not touch what drafting costs"
        took = max(seconds - drafting, 0.1 * seconds)
        predicted = float(after.predicted) - float(before.predicted)
        seen.append((took, verify, predicted, float(controls.factor), float(new.factor)))
        return new

    monkeypatch.setattr(ControllerConfig, "observe_seconds", spy)
    return seen


def consume(stream):
    """The output that a stream returns."""
    while True:
        try:
            next(stream)
        except StopIteration as ended:
            return ended.value


@pytest.mark.slow
def test_the_next_round_reads_the_factor(params, observed):
    """In a trace and in a stream, by the paper's formula, and without compiling anything."""
    plain = jaxspec.decode(params, PROMPT, drafter="ar", max_new_tokens=24)
    policy = make_bastion(TABLE, "bastion-paper", ema=RATE)
    given = group_options(policy=policy, **OPTIONS)
    jaxspec.decode(params, PROMPT, **given, trace=True)  # compiles
    observed.clear()
    compiled = run._cache_size()
    traced = jaxspec.decode(params, PROMPT, **given, trace=True)
    count = len(observed)
    # A plain decode goes round by round too.
    whole = jaxspec.decode(params, PROMPT, **given)
    assert whole.tokens == traced.tokens and len(observed) == 2 * count
    assert float(whole.policy.controls.factor) == observed[-1][-1]
    del observed[count:]
    streamed = consume(
        jaxspec.stream(params, PROMPT, **group_options(policy=traced.policy, **OPTIONS))
    )
    assert run._cache_size() == compiled
    assert traced.tokens == streamed.tokens == plain.tokens
    assert count == traced.stats.rounds and len(observed) == 2 * count
    took, verify, predicted, before, after = np.array(observed).T
    np.testing.assert_allclose(after, correct_running(took, verify, RATE), rtol=1e-5)
    np.testing.assert_array_equal(before, [1.0, *after[:-1]])
    np.testing.assert_allclose(predicted, 2.0 + before * verify, rtol=1e-4)
    assert float(streamed.policy.controls.factor) == after[-1] and np.ptp(after) > 0.1
    assert len(set(took)) > 3


@pytest.mark.slow
def test_other_policies_are_not_told(params, observed):
    policy = make_bastion(TABLE, rate=RATE)
    assert not policy.config.each_round
    traced = jaxspec.decode(params, PROMPT, **group_options(policy=policy, **OPTIONS), trace=True)
    streamed = consume(jaxspec.stream(params, PROMPT, **group_options(policy=policy, **OPTIONS)))
    assert traced.tokens == streamed.tokens and not observed
    assert float(traced.policy.controls.factor) == 1.0


def test_a_composed_policy_asks_for_its_parts():
    each = make_bastion(TABLE, ema=RATE)
    assert compose(make_static(steps=2), each).config.each_round
    assert not compose(make_static(steps=2), make_bastion(TABLE)).config.each_round


def test_several_processes_observe_no_rounds(params, monkeypatch):
    """Their clocks differ, and so would their decisions."""
    policy = make_bastion(TABLE, ema=RATE)
    session = prepare(params, PROMPT, **group_options(policy=policy, **OPTIONS))
    assert observed_rounds.wants_each_round(session)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    assert not observed_rounds.wants_each_round(session)
