"""What the first call of a shape compiles, and when."""

import functools
import gc
import threading

import jax
import numpy as np
import pytest
from short_models import load_short

import jaxspec
from jaxspec.call import start
from jaxspec.call.session import matmul_precision, prepare
from jaxspec.core.runtime.compilations import compilations
from jaxspec.round.loop import run
from jaxspec.tuner import probe
from jaxspec.tuner.timed_rounds import PLAIN
from jaxspec.tuner.tuner import Tuner, tune

PROMPT = [5, 6, 7, 8]


@pytest.fixture(scope="module")
def mini():
    return load_short("jetspec", None)


def forget(monkeypatch):
    """Let the next call compile ahead, as the first of its kind does."""
    monkeypatch.setattr(start.prefill, "_begun", {})
    monkeypatch.setattr(start.run, "_begun", {})


@pytest.mark.thorough
def test_a_start_compiles_the_rounds_that_the_call_runs(mini):
    session = prepare(mini, PROMPT, max_new_tokens=70, drafter="jetspec", budget=3)
    with matmul_precision(session):
        state = start.start_session(session).state
        before = compilations()
        state = run(session.params, session.request, state, np.int32(2), config=session.config)
    assert compilations() == before and int(state.rounds[0]) == 2


@pytest.mark.thorough
def test_only_the_first_start_compiles_ahead(mini, monkeypatch):
    call = functools.partial(jaxspec.decode, mini, PROMPT, max_new_tokens=70, budget=3)
    text = call().tokens
    monkeypatch.setattr(start, "prefill_arguments", None)  # what compiles ahead would call it
    assert call(seed=1).tokens == text


@pytest.mark.thorough
def test_an_error_of_the_rounds_appears_where_they_run(mini, monkeypatch):
    def fail(*args):
        raise RuntimeError("no memory")

    forget(monkeypatch)
    monkeypatch.setattr(jax.stages.Lowered, "compile", fail)
    out = jaxspec.decode(mini, PROMPT, max_new_tokens=5, budget=3)
    assert len(out.tokens) == 5


@pytest.mark.parametrize("ahead", [True, False])
def test_a_call_after_an_interrupt_waits_for_the_same_compilation(mini, monkeypatch, ahead):
    """As in a notebook: the compilation goes on, and nothing is compiled twice."""
    began, go, compiled = threading.Event(), threading.Event(), []

    def compile_slowly(lowered):
        began.set()
        assert go.wait(60)
        compiled.append(lowered)

    def interrupt(futures):
        assert began.wait(60)
        raise KeyboardInterrupt

    forget(monkeypatch)
    monkeypatch.setattr(start, "_suits", lambda session: ahead)
    monkeypatch.setattr(start, "_compile", compile_slowly)
    call = functools.partial(jaxspec.decode, mini, PROMPT, max_new_tokens=5, budget=3)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(start, "wait", interrupt)
        call()
    assert not compiled
    threading.Timer(0.1, go.set).start()
    assert len(call().tokens) == 5
    assert len(compiled) == len({id(one) for one in compiled}) == 2


def test_a_probe_times_each_compiled_width_once(mini, monkeypatch, tmp_path):
    timed = []

    def time_kinds(session, state, kinds, compiles):
        timed.append(tuple(kinds))
        return np.array([1.0, 1.5])

    monkeypatch.setattr(probe, "_time_kinds", time_kinds)
    session, hooks = tune(prepare(mini, PROMPT, max_new_tokens=9, capacity=320), Tuner(tmp_path))
    compiled = session.policy.config.widths
    if len(compiled) != 1:
        pytest.skip("without panels, verification of a single row is compiled too")
    with matmul_precision(session):
        session = hooks.after_prefill(session, start.start_session(session).state)
    assert timed == [(PLAIN, *compiled)]
    costs = session.policy.controls.costs
    assert np.asarray(costs.draft)[0] == pytest.approx(0.5)
    assert np.asarray(costs.verify)[:, 0] == pytest.approx([1.0, 1.0])


def test_tracing_pauses_the_collection_of_garbage(mini, monkeypatch):
    paused = []
    trace = start.prefill.trace

    def spy(*args, **kwargs):
        paused.append(not gc.isenabled())
        return trace(*args, **kwargs)

    forget(monkeypatch)
    monkeypatch.setattr(start.prefill, "trace", spy)
    jaxspec.decode(mini, PROMPT, max_new_tokens=5, budget=3)
    assert paused == [True] and gc.isenabled()


def test_a_pause_of_the_collection_ends_with_an_error_and_respects_the_caller():
    with pytest.raises(RuntimeError), start.pausing_collection():
        raise RuntimeError
    assert gc.isenabled()
    gc.disable()
    try:
        with start.pausing_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
