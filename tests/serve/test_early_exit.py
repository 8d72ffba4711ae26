"""A visit ends with the first text if a request waits or slots are few; texts don't depend on it."""

import numpy as np
import pytest
from serve_toys import PROMPT, SAMPLED, make, run
from short_models import load_short

from jaxspec.serve import ServeRequest
from jaxspec.serve.scheduling.follow import Followers, follow

SHORT, LONG = 3, 24


@pytest.fixture(scope="module")
def mini():
    return load_short()


@pytest.fixture(autouse=True)
def many(monkeypatch):
    """Take an engine's two slots for many: they wait for each other unless a request waits."""
    monkeypatch.setattr("jaxspec.serve.scheduling.schedule._FEW", 0)


def requests(count, **options):
    """A short request, a long one, and others of which each waits for a slot of the two."""
    sizes = (SHORT, LONG, 5, 6)[:count]
    return [ServeRequest(PROMPT, max_new_tokens=n, ignore_eos=True, **options) for n in sizes]


def first_visit(engine, wanted):
    """Submit and visit once; return the rounds of the visit, and which ids ended in it."""
    engine.warm_up()
    ids = [engine.submit(one) for one in wanted]
    ended = [update.id for update in engine.visit() if update.finish]
    return engine.counters()["rounds"], [ids.index(id) for id in ended]


@pytest.mark.thorough
def test_a_visit_ends_with_the_slot_that_a_waiting_request_needs(mini):
    plain = dict(drafter="ar")  # a token each round
    assert first_visit(make(mini), requests(2, **plain)) == (8, [0])
    engine = make(mini)
    assert first_visit(engine, requests(3, **plain)) == (SHORT, [0])
    assert engine.counters()["waiting"] == 1
    assert {update.id: len(update.tokens) for update in engine.visit()} == {1: 8, 2: 5}


@pytest.mark.parametrize(("few", "rounds"), [(1, 8), (2, SHORT)])
@pytest.mark.thorough
def test_of_few_slots_none_stays_idle(mini, few, rounds, monkeypatch):
    monkeypatch.setattr("jaxspec.serve.scheduling.schedule._FEW", few)
    assert first_visit(make(mini), requests(2, drafter="ar")) == (rounds, [0])


def test_drafted_visits_end_early_too(mini):
    alone, ended = first_visit(make(mini), requests(2))
    assert ended == [0]
    assert first_visit(make(mini), requests(3)) < (alone, [0])


def test_a_visit_has_half_of_its_rounds_while_a_prompt_is_fed(mini):
    engine = make(mini)
    assert first_visit(engine, requests(2, drafter="ar")) == (8, [0])
    engine.submit(ServeRequest(PROMPT[::-1] * 6, max_new_tokens=2))  # of three chunks
    rounds = [8]
    while engine.counters()["running"] or engine.counters()["waiting"]:
        engine.visit()
        rounds.append(engine.counters()["rounds"])
    assert rounds[:4] == [8, 12, 16, 24]


@pytest.mark.parametrize("options", [{}, SAMPLED, dict(drafter="ar")])
def test_tokens_are_the_same_with_and_without(mini, options, monkeypatch):
    wanted = requests(4, **options)
    engine = make(mini)
    early = run(engine, *wanted)
    assert engine.counters()["compiles_after_warm_up"] == 0
    engine = make(mini)
    monkeypatch.setattr(engine._schedule, "_leaves_early", lambda waiting: False)
    assert [one[:3] for one in run(engine, *wanted)] == [one[:3] for one in early]
    assert [len(one[0]) for one in early] == [SHORT, LONG, 5, 6]


def test_processes_that_follow_end_the_visit_with_the_first(mini):
    first, second, told = make(mini), make(mini), []
    first._device.followers = Followers(first._device.takes, told.append)
    assert first_visit(first, requests(3, drafter="ar")) == (SHORT, [0])
    first.close()
    packets = iter(told)
    follow(second._device, lambda nothing: next(packets))
    np.testing.assert_array_equal(second._device.state.decode.rounds, [SHORT, SHORT])
