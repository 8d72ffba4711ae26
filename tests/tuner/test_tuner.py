"""The tuner as callers see it: left out of fixed calls, given to others, frozen."""

from __future__ import annotations

import functools
import sys
import time

import numpy as np
import pytest
from short_models import load_short

import jaxspec
from jaxspec.call.hooks import UNTUNED
from jaxspec.call.options import group_options
from jaxspec.call.session import prepare
from jaxspec.tuner import probe, tuner

PROMPT = [5, 6, 7, 8]
SHORT = dict(max_new_tokens=24, capacity=256)


@pytest.fixture(scope="module")
def mini():
    return load_short()


@pytest.fixture
def clock_calls(monkeypatch):
    """The modules of the tuner that read a clock, in order."""
    found = []

    def note(clock):
        caller = sys._getframe(1).f_globals["__name__"]
        if caller.startswith("jaxspec.tuner"):
            found.append(caller)
        return clock()

    for name in ("perf_counter", "monotonic", "time"):
        monkeypatch.setattr(time, name, functools.partial(note, getattr(time, name)))
    return found


class Untouchable:
    """A tuner that nobody may ask anything."""

    def __getattribute__(self, name):
        if name == "__class__":
            return jaxspec.Tuner
        raise AssertionError(f"asked for {name}")


@pytest.mark.parametrize("fixed", [dict(budget=4), dict(drafter="ar", budget=4)])
def test_a_fixed_call_asks_no_tuner(mini, cache, clock_calls, monkeypatch, fixed):
    monkeypatch.setattr(tuner, "_process", Untouchable())
    out = jaxspec.decode(mini, PROMPT, **SHORT, **group_options(**fixed))
    assert "".join(jaxspec.stream(mini, PROMPT, **SHORT, **group_options(**fixed))) == out.text
    jaxspec.warmup(mini, prompt_tokens=4, **SHORT, **group_options(**fixed))
    assert not clock_calls and not cache.exists()
    with pytest.raises(AssertionError, match="asked for"):
        jaxspec.decode(mini, PROMPT, **SHORT)


def test_a_call_uses_the_tuner_that_it_is_given(mini, cache, tmp_path, clock_calls, monkeypatch):
    monkeypatch.setattr(tuner, "_process", Untouchable())
    own = jaxspec.Tuner(tmp_path / "own")
    out = jaxspec.decode(mini, PROMPT, tuner=own, **SHORT)
    assert out.policy is not None and clock_calls
    assert len(list((tmp_path / "own").iterdir())) == 1 and not cache.exists()
    again = jaxspec.decode(mini, PROMPT, tuner=own, **SHORT)
    assert int(again.policy.state.rounds) > int(out.policy.state.rounds)
    with pytest.raises(TypeError, match=r"tuner is of type str: give jaxspec.Tuner\(\)"):
        jaxspec.decode(mini, PROMPT, tuner="own")


def test_a_frozen_tuner_reads_and_learns_nothing(mini, tmp_path, clock_calls, monkeypatch):
    own = jaxspec.Tuner(tmp_path)
    jaxspec.decode(mini, PROMPT, tuner=own, **SHORT)
    (path,) = tmp_path.iterdir()
    kept = path.read_text()
    clock_calls.clear()
    own.freeze()
    for frozen in (own, jaxspec.Tuner(tmp_path, frozen=True)):
        outs = [jaxspec.decode(mini, PROMPT, tuner=frozen, **SHORT) for _ in range(2)]
        assert [int(out.policy.state.rounds) for out in outs] == [outs[0].stats.rounds] * 2
        costs = [out.policy.controls.costs for out in outs]
        np.testing.assert_array_equal(costs[0].verify, costs[1].verify)
        assert frozen.frozen and not clock_calls and path.read_text() == kept


def test_a_frozen_tuner_without_a_table_verifies_what_suits_the_device(mini, tmp_path, clock_calls):
    frozen = jaxspec.Tuner(tmp_path / "none", frozen=True)
    session = frozen.prepare(prepare(mini, PROMPT, **SHORT))
    assert session.policy is None and session.config.budget == 8
    out = jaxspec.decode(mini, PROMPT, tuner=frozen, **SHORT)
    assert (
        out.policy is None and out.tokens == jaxspec.decode(mini, PROMPT, budget=8, **SHORT).tokens
    )
    assert not clock_calls and not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match="nothing is measured for this call"):
        frozen.calibrate(prepare(mini, PROMPT, **SHORT))


def test_calibration_replaces_what_is_known(mini, tmp_path, monkeypatch):
    """Also in this process, and in short floats, where calls replace nothing."""
    short, own = load_short(dtype="bfloat16"), jaxspec.Tuner(tmp_path)
    times = iter((1.0, 2.0))

    def time_kinds(session, state, kinds, compiles):
        return next(times) * np.arange(1.0, 1 + len(kinds))

    monkeypatch.setattr(probe, "_time_kinds", time_kinds)
    first = jaxspec.decode(short, PROMPT, tuner=own, **SHORT).policy.controls
    same = jaxspec.decode(short, PROMPT, tuner=own, **SHORT).policy.controls
    np.testing.assert_array_equal(first.costs.verify, same.costs.verify)
    assert not float(first.rate)
    own.calibrate(prepare(short, PROMPT, **SHORT))
    for later in (own, jaxspec.Tuner(tmp_path)):
        found = jaxspec.decode(short, PROMPT, tuner=later, **SHORT).policy.controls
        np.testing.assert_allclose(found.costs.verify, 2 * np.asarray(first.costs.verify))


def test_of_two_that_measured_the_first_to_write_counts(tmp_path, monkeypatch):
    """In short floats: the other one goes on with what is on disk, in the same call."""
    short, seconds = load_short(dtype="bfloat16"), iter((1.0, 3.0))
    monkeypatch.setattr(
        probe, "_time_kinds", lambda *arguments: next(seconds) * np.arange(1.0, 4.0)
    )
    tuners = [jaxspec.Tuner(tmp_path) for _ in range(2)]
    sessions = [one.prepare(prepare(short, PROMPT, **SHORT)) for one in tuners]
    found = [
        one.after_prefill(session, None) for one, session in zip(tuners, sessions, strict=True)
    ]
    first, second = (session.policy.controls.costs for session in found)
    np.testing.assert_array_equal(first.verify, second.verify)


def test_hooks_do_nothing_by_themselves(mini):
    session = prepare(mini, PROMPT, **SHORT)
    assert UNTUNED.after_prefill(session, None) is session
    assert UNTUNED.before_rounds(session, None) == (session, None)
    assert not UNTUNED.may_shrink(session) and not UNTUNED.shrinking_pays(session, 1, 1e9)
    assert UNTUNED.recall_pace(session) is UNTUNED.note_pace(session, 1.0) is None
