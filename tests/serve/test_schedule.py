"""A drafter that does not pay rests: it reads nothing, and drafts for all who want it or for nobody."""

import numpy as np
import pytest
from serve_toys import PROMPT, make, run

import jaxspec
from jaxspec.serve import ServeRequest


@pytest.fixture(scope="module")
def mini():
    return jaxspec.load("mini", drafter="dflash", dtype="float32")


class Choice:
    """A choice that says what it is told."""

    def __init__(self, drafts):
        self.drafts, self.observed = drafts, []

    def wants_drafts(self):
        return self.drafts

    wants_followers = wants_drafts

    def observe(self, drafts, emitted, rows):
        self.observed.append(drafts)


@pytest.fixture
def engine(mini):
    engine = make(mini, rule="global")
    engine.warm_up()
    return engine


def read_drafter(engine):
    """The drafter's caches, and how many of their rows count."""
    draft = engine._device.state.decode.draft
    return np.asarray(draft.k), np.asarray(draft.length)


LONG = ServeRequest(PROMPT, max_new_tokens=30, ignore_eos=True)


def test_a_resting_drafter_reads_nothing(engine, mini):
    engine._schedule._choice = choice = Choice(False)
    before = read_drafter(engine)
    ((tokens, _, drafted, _),) = run(engine, LONG)
    for one, other in zip(before, read_drafter(engine), strict=True):
        np.testing.assert_array_equal(one, other)
    assert not any(drafted) and set(choice.observed) == {False}
    assert engine.counters()["compiles_after_warm_up"] == 0
    options = dict(method="ar", max_new_tokens=30, ignore_eos=True)
    assert tokens == jaxspec.decode(mini, list(PROMPT), **options).tokens


def test_nobody_gets_drafts_until_all_can_have_them(engine):
    engine._schedule._choice = choice = Choice(False)
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
    engine._schedule._choice = choice = Choice(True)
    plain = ServeRequest(PROMPT, max_new_tokens=30, ignore_eos=True, method="ar")
    before = read_drafter(engine)[1]
    found = run(engine, plain, LONG)
    assert any(found[1][2]) and not any(found[0][2]) and found[0][0] == found[1][0]
    # The drafter has read one of them, up to the root.
    read = read_drafter(engine)[1] - before
    assert sorted(read) == [0, len(PROMPT) + 30 - 1] and any(choice.observed)
