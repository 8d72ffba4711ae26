"""A drafter that does not pay rests: it reads nothing, and drafts for all who want it or for
nobody.
"""

import numpy as np
import pytest
from serve_toys import PROMPT, make, run
from short_models import load_short

import jaxspec
from jaxspec.call.options import group_options
from jaxspec.serve import ServeRequest
from jaxspec.serve.on_device.slot_settings import _INTEGERS
from jaxspec.tuner.serving.draft_choice import DraftChoice

READER = _INTEGERS.index("reader")


@pytest.fixture(scope="module")
def mini():
    return load_short()


class Choice:
    """A choice that says what it is told."""

    def __init__(self, drafts):
        self.drafts, self.observed, self.rests = drafts, [], False

    def wants_drafts(self):
        return self.drafts

    wants_followers = wants_drafts

    def limit_rounds(self, drafts):
        return None

    def observe(self, drafts, emitted, rows, seconds, busy):
        self.observed.append(drafts)
        return self.rests


def put(engine, drafts):
    """Give an engine a choice for all loads."""
    schedule, choice = engine._schedule, Choice(drafts)
    schedule._choices = dict.fromkeys(schedule._choices, choice)
    return choice


@pytest.fixture
def engine(mini):
    # The programs are those of test_engine.py.
    engine = make(mini, rule="global", lookup=None, max_logprobs=0)
    engine.warm_up()
    return engine


def read_drafter(engine):
    """The drafter's caches, and how many of their rows count."""
    draft = engine._device.state.decode.draft.own
    return np.asarray(draft.k[0]), np.asarray(draft.length)


LONG = ServeRequest(PROMPT, max_new_tokens=30, ignore_eos=True)


@pytest.mark.thorough
def test_a_resting_drafter_reads_nothing(engine, mini):
    choice = put(engine, False)
    before = read_drafter(engine)
    ((tokens, _, drafted, _),) = run(engine, LONG)
    for one, other in zip(before, read_drafter(engine), strict=True):
        np.testing.assert_array_equal(one, other)
    assert not any(drafted) and set(choice.observed) == {False}
    assert engine.counters()["compiles_after_warm_up"] == 0
    options = dict(drafter="ar", max_new_tokens=30, ignore_eos=True)
    assert tokens == jaxspec.decode(mini, list(PROMPT), **group_options(**options)).tokens


def test_nobody_gets_drafts_until_all_can_have_them(engine):
    choice = put(engine, False)
    first = engine.submit(LONG)
    engine.visit()
    choice.drafts = True
    second = engine.submit(ServeRequest(PROMPT, max_new_tokens=60, ignore_eos=True))
    drafted = {first: [], second: []}
    while not engine.idle:
        engine.visit()
        running = {task.id for task in engine._tasks.values()}
        drafted[first if first in running else second].append(choice.observed[-1])
    assert not any(drafted[first]) and any(drafted[second])


def test_requests_that_ask_for_no_drafts_do_not_keep_them_from_others(engine):
    choice = put(engine, True)
    plain = ServeRequest(PROMPT, max_new_tokens=30, ignore_eos=True, drafter="ar")
    before = read_drafter(engine)[1]
    found = run(engine, plain, LONG)
    assert any(found[1][2]) and not any(found[0][2]) and found[0][0] == found[1][0]
    # The drafter has read one of them, up to the root.
    read = read_drafter(engine)[1] - before
    assert sorted(read) == [0, len(PROMPT) + 30 - 1] and any(choice.observed)


def test_a_drafter_that_begins_to_rest_lets_go_of_what_it_read(engine, mini):
    """Plain rounds go on by the program without it, and nothing of the text is used for it again."""
    choice = put(engine, True)
    engine.submit(LONG)
    made = []
    while not any(choice.observed):
        made += [token for update in engine.visit() for token in update.tokens]
    (task,) = engine._tasks.values()
    assert task.reader == 1
    choice.rests, choice.drafts = True, False
    made += [token for update in engine.visit() for token in update.tokens]
    assert task.reader == task.unread == 0
    assert not engine._device.settings[:, READER].any()
    choice.rests = False
    before = read_drafter(engine)
    while not engine.idle:
        made += [token for update in engine.visit() for token in update.tokens]
    for one, other in zip(before, read_drafter(engine), strict=True):
        np.testing.assert_array_equal(one, other)
    assert engine._prefixes.find((*PROMPT, *made, 5), reader=1)[1] == 0
    assert engine.counters()["compiles_after_warm_up"] == 0
    options = dict(drafter="ar", max_new_tokens=30, ignore_eos=True)
    assert made == jaxspec.decode(mini, list(PROMPT), **group_options(**options)).tokens


def test_each_load_has_its_own_choice(engine):
    """Two slots draft, one does not; a request is read if drafting pays at the load that it makes."""
    alone, both = Choice(False), Choice(True)
    engine._schedule._choices = {(2, 0): alone, (2, 1): both}
    for _ in range(4):  # two of them wait
        engine.submit(LONG)
    while not engine.idle:
        engine.visit()
    assert any(both.observed) and not any(alone.observed)
    both.observed.clear()
    engine.submit(LONG)
    while not engine.idle:
        engine.visit()
        assert all(task.reader == 0 for task in engine._tasks.values())
    assert not any(alone.observed) and not both.observed


def test_a_trial_begins_with_short_visits(engine):
    choice = put(engine, True)
    choice.limit_rounds = lambda drafts: 1
    rounds = engine.counters()["rounds"]
    engine.submit(LONG)
    visits = 0
    while not engine.idle:
        engine.visit()
        visits += 1
    assert engine.counters()["rounds"] - rounds == sum(choice.observed) <= visits


@pytest.mark.parametrize("steady", [True, False])
def test_no_clock_decides_in_a_steady_engine(mini, tmp_path, monkeypatch, steady):
    """As in short floats: costs stay as they were, and choices are told no seconds."""
    monkeypatch.setattr(jaxspec.Tuner, "is_steady", lambda tuner, params: steady)
    tuner, given = jaxspec.Tuner(tmp_path), []
    engine = make(mini, rule="global", lookup=None, max_logprobs=0, tuner=tuner)
    engine.warm_up()
    live = engine._schedule._live
    before = {part: (costs.drafted.copy(), costs.plain.copy()) for part, costs in live.items()}
    observe = DraftChoice.observe

    def note(choice, drafts, emitted, rows, seconds=None, busy=None):
        given.append((seconds, busy))
        return observe(choice, drafts, emitted, rows, seconds, busy)

    monkeypatch.setattr(DraftChoice, "observe", note)
    for _ in range(2):
        run(engine, LONG)
    same = [
        np.array_equal(one, other)
        for part, costs in live.items()
        for one, other in zip(before[part], (costs.drafted, costs.plain), strict=True)
    ]
    assert all(same) == steady
    assert all(pair == (None, None) for pair in given) == steady and given
