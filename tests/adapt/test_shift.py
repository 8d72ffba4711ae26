"""The test for a change of the text, and what bandit-paired makes of an alarm."""

import json
import math

import numpy as np
import pytest

from jaxspec.adapt.deciders import Query
from jaxspec.adapt.deciders.bandit_paired import PairedOptions, make_bandit_paired
from jaxspec.adapt.deciders.rivals import Rivals
from jaxspec.adapt.deciders.shift import Shift, find_step
from jaxspec.adapt.gate import Flips

PAIRED = make_bandit_paired()


def query(index, pace, version=0, filled=2000):
    both = {"head": filled, "full": filled}
    draws = (0.9, 0.1, 0.5)
    return Query(index, "", 3000, round(3000 / pace), 1.0, 0.0, 30, both, 0, draws, {}, version)


def listen(logs):
    """Alarms: (query at which it is raised, first query of the new text)."""
    shift, alarms = Shift(), []
    state = shift.init()
    for i, log in enumerate(logs):
        state, fresh = shift.add(state, query(i, math.exp(log)))
        json.dumps(state)
        alarms += [] if fresh is None else [(i, i + 1 - fresh)]
    return alarms


@pytest.mark.parametrize(("before", "after"), [(1.5, 0.3), (0.3, 1.5), (0.6, 0.3)])
def test_a_change_is_found_where_it_began(before, after):
    random, off = np.random.default_rng(0), []
    for _ in range(20):
        logs = [*random.normal(before, 0.12, 40), *random.normal(after, 0.12, 20)]
        (at, first), *more = listen(logs)
        assert not more and 40 <= at <= 52
        off.append(abs(first - 40))
        if abs(before - after) > 1:
            assert at <= 41
    assert np.mean(off) <= (0.1 if abs(before - after) > 1 else 1.0)


def test_sums_are_those_of_page():
    """Against the formula, with the running mean and variance of all queries so far."""
    random = np.random.default_rng(3)
    logs = random.normal(1.0, 0.3, 30)
    shift, state, fall = Shift(alarm=1e9, memory=10**6), Shift().init(), 0.0
    for i, log in enumerate(logs):
        state, _ = shift.add(state, query(i, math.exp(log)))
        paces = [math.log(query(j, math.exp(x)).pace) for j, x in enumerate(logs[: i + 1])]
        assert math.isclose(state["mean"], np.mean(paces), rel_tol=1e-9)
        assert math.isclose(state["variance"], np.var(paces), abs_tol=1e-12)
        if i >= shift.learned:
            change = (paces[-1] - np.mean(paces[:-1])) / max(np.std(paces[:-1]), shift.floor)
            fall = max(0.0, fall - max(-6.0, min(6.0, change)) - shift.slack)
            found = sum(min(max(x, -6.0), 6.0) - shift.slack for x in state["fall"])
            assert math.isclose(found, fall, abs_tol=1e-9)


def test_the_next_change_is_found_too():
    """There is no blind time after an alarm: changes may follow each other closely."""
    random, found = np.random.default_rng(4), 0
    for _ in range(20):
        means = [1.5] * 30 + [0.3] * 5 + [1.5] * 5 + [0.6] * 20
        first, second, *more = [begin for _, begin in listen(random.normal(means, 0.12))]
        assert first == 30 and 32 <= second <= 36
        found += len(more) == 1 and 36 <= more[0] <= 40
    assert found >= 18


def test_a_step_is_told_from_a_slope():
    """A pace that grew slowly before the text changed: the new text begins at the step."""
    random = np.random.default_rng(2)
    for _ in range(20):
        slope = 0.3 + 0.15 * np.arange(30) / 30
        logs = [*random.normal(slope, 0.1), *random.normal(1.5, 0.1, 5)]
        (_, first) = listen(logs)[-1]
        assert 29 <= first <= 31
    assert find_step([0.4, 0.7, 0.2, 6.0, 5.0]) == 2 and find_step([3.0, 3.0, 3.0]) == 3


def test_domains_that_take_turns_are_no_change():
    """A single query far off is none either."""
    random, alarms = np.random.default_rng(1), 0
    for _ in range(50):
        logs = random.choice([1.5, 0.3, 0.6], 400) + random.normal(0, 0.15, 400)
        alarms += len(listen(logs))
    assert alarms <= 5  # of 20,000 queries
    steady = random.normal(1.0, 0.1, 60)
    steady[30] = -3.0
    assert not listen(steady)


def serve(state, paces, first=0, version=0, **changes):
    decisions = []
    for i, pace in enumerate(paces):
        state, decision = PAIRED.decide(state, query(first + i, pace, version, **changes))
        decisions.append(decision)
    return state, decisions


def told(state, **known):
    return state | {"rivals": state["rivals"] | known}


def rivals(state):
    return state["rivals"]["versions"]


def test_an_alarm_forgets_older_text_and_compares_versions():
    """Versions 0, that before the newest one, and those that decoded at earlier changes."""
    state, decisions = serve(PAIRED.init(), [4.5] * 20, filled=0)
    assert all(one.since is None and not one.judge for one in decisions)
    state, decisions = serve(state, [1.3] * 3, 20, filled=0)
    assert [one.since for one in decisions] == [None, 20, None]
    assert rivals(state) == [] and state["rivals"]["homes"] == [0]  # version 0 decodes itself
    state, _ = serve(state, [1.3] * 20, 23, version=5, filled=0)
    state = told(state, before=4)
    state, decisions = serve(state, [4.5] * 3, 43, version=5, filled=0)
    assert decisions[1].since == 43 and decisions[1].judge == (0, 4)
    assert state["rivals"]["homes"] == [0, 5] and state["watch"]["versions"] == [5, 5]
    assert decisions[1].judge_since is None  # on all evidence since the text changed
    # A loser is dropped, unless it is the first version. The next look is at text after the alarm.
    flips = {0: Flips(2, 40, 90, 30), 4: Flips(9, 8, 90, 30), 5: Flips(2, 40, 90, 30)}
    state, elected = PAIRED.elect(told(state, versions=[0, 4, 5]), flips)
    assert elected is None and rivals(state) == [0, 4]
    state, decisions = serve(state, [4.5] * 2, 46, version=5, filled=0)
    assert [one.judge for one in decisions] == [(0, 4), ()]
    assert decisions[0].judge_since == 45
    state, elected = PAIRED.elect(state, {0: Flips(9, 8, 90, 30), 4: Flips(30, 8, 90, 30)})
    assert elected == 4 and rivals(state) == [0] and state["watch"]["versions"] == [4, 4]
    state, elected = PAIRED.elect(state, {0: Flips(30, 8, 90, 30)})
    assert elected == 0 and rivals(state) == []


def test_a_version_that_made_decoding_worse_is_compared_with_the_one_before():
    state, _ = serve(PAIRED.init(), [3.0] * 20, version=1, filled=0)
    state = told(state, before=1)
    _, decisions = serve(state, [1.5] * 3, 20, version=2, filled=0)
    assert [one.judge for one in decisions if one.judge] == [(0, 1)]


def test_looks_are_those_of_the_options():
    decider = make_bandit_paired(PairedOptions(rivals=Rivals(looks=(0, 1, 3))))
    state, seen = decider.init(), []
    for i in range(40):
        version = 0 if i < 20 else 3
        state, decision = decider.decide(state, query(i, 4.5 if i < 20 else 1.3, version, 0))
        seen += [i] * bool(decision.judge)
        if decision.judge:
            state, _ = decider.elect(state, {0: Flips(5, 5, 90, 30)})
    assert seen == [21, 22, 24]
