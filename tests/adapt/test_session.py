"""Sessions: the text never changes, versions survive, decisions replay to the same bits."""

import itertools
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import adapt_toys as toys
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from slow_cases import slow_except

import jaxspec
from jaxspec.adapt import AdaptiveSession, AdaptOptions, replay
from jaxspec.adapt.deciders import Decider, Decision
from jaxspec.adapt.publish import copy_weights, hash_weights, publish
from jaxspec.call.options import group_options
from jaxspec.call.session import prepare, run_prefill
from jaxspec.core.runtime.compilations import compilations
from jaxspec.round.loop import run

OPTIONS = toys.ADAPT


@pytest.mark.slow
@pytest.mark.parametrize("temperature", slow_except([1.0], [0.0, 1.0]))
def test_text_is_that_of_a_session_that_never_learns(temperature):
    params = toys.make_params()
    target = hash_weights(params.target)
    given = hash_weights(params.drafters)
    session = AdaptiveSession(params, "always-full", options=OPTIONS)
    options = toys.OPTIONS | dict(temperature=temperature, seed=3)
    for prompt in toys.ROUNDS:
        plain = jaxspec.decode(params, prompt, **group_options(**options))
        assert session.decode(prompt, **group_options(**options)).tokens == plain.tokens
    assert session.version >= 3
    assert hash_weights(session.serving) != hash_weights(params.drafters["jetspec"]["params"])
    assert hash_weights(params.target) == target and hash_weights(params.drafters) == given


@pytest.mark.parametrize("temperature", slow_except([1.0], [0.0, 1.0]))
def test_text_stays_when_every_round_has_other_weights(temperature):
    params, random = toys.make_params(), np.random.default_rng(0)
    options = toys.OPTIONS | dict(temperature=temperature, seed=5)
    wanted = jaxspec.decode(params, toys.PROMPTS[0], **group_options(**options)).tokens
    session = prepare(params, toys.PROMPTS[0], **group_options(**options))
    state, served = run_prefill(session), copy_weights(params.drafters["jetspec"]["params"])
    while not bool(state.done.all()):
        noise = jax.tree.map(
            lambda leaf: jnp.asarray(random.normal(scale=0.2, size=leaf.shape), jnp.float32), served
        )
        served = publish(served, noise)
        now = params.replace(drafters={"jetspec": {"params": served}})
        state = run(now, session.request, state, np.int32(1), config=session.config)
    assert np.asarray(state.tokens)[0, : len(wanted)].tolist() == wanted


@pytest.mark.thorough
def test_nothing_compiles_after_the_first_updates():
    session = AdaptiveSession(toys.make_params(), "always-head", options=OPTIONS)
    for prompt in toys.ROUNDS:
        session.decode(prompt, **toys.OPTIONS)
    counted, version = compilations(), session.version
    for prompt in toys.ROUNDS:
        session.decode(prompt, **toys.OPTIONS)
    assert session.version > version and compilations() == counted


@pytest.mark.parametrize(
    "decider",
    [
        "bandit-paired",
        *(pytest.param(one, marks=pytest.mark.slow) for one in ("bandit-paper", "osd", "random")),
    ],
)
@pytest.mark.thorough
def test_events_replay_to_the_same_bits(decider):
    params = toys.make_params()
    # Where updates are cheap; on this machine they are not, and bandit-paired makes none.
    session = AdaptiveSession(
        params, decider, options=OPTIONS, seed=7, prices=toys.Priced(1.0, 1e-3)
    )
    prompts = toys.ROUNDS * 3
    for prompt in prompts:
        session.decode(prompt, domain="toy", **toys.OPTIONS)
    assert any("update" in event for event in session.events)
    json.dumps(session.events)
    again = replay(
        params, session.events, prompts, decider, options=OPTIONS, seed=7, **toys.OPTIONS
    )
    assert hash_weights(again.serving) == hash_weights(session.serving)
    assert again.version == session.version


@pytest.mark.thorough
def test_the_cost_of_an_update_is_without_its_compilation(monkeypatch):
    ticks, compiling = itertools.count(), itertools.count(0.0, 0.75)
    session = learned()
    session.clock = lambda: float(next(ticks))
    monkeypatch.setattr("jaxspec.adapt.adaptation.compile_seconds", lambda: next(compiling))
    _, updates = serve_updates(session)
    assert updates and {update["seconds"] for update in updates} == {0.25}
    assert {e["update_seconds"] for e in session.events[-8:] if "update" in e} == {3.0}


def test_a_session_that_rests_cuts_no_evidence():
    """The decider says of every query whether the next one's evidence is wanted."""
    wanted = [True, False, False, True, True]
    decider = toys.scripted([Decision(gather=one) for one in wanted])
    session = AdaptiveSession(toys.make_params(), decider, options=OPTIONS)
    written = []
    for i in range(5):
        session.decode(toys.ROUNDS[i], **toys.OPTIONS)
        written.append(session.buffers.written)
    assert 0 < written[0] < written[1] == written[2] == written[3] < written[4]
    assert [event["positions"] > 0 for event in session.events] == [True, *wanted[:-1]]


@pytest.mark.thorough
def test_a_decider_that_never_learns_runs_the_plain_program():
    params = toys.make_params()
    session = AdaptiveSession(params, "never", options=OPTIONS)
    plain = jaxspec.decode(params, toys.ROUNDS[0], **group_options(**toys.FLAT | {"lookup": False}))
    counted = compilations()
    assert session.decode(toys.ROUNDS[0], **toys.OPTIONS).tokens == plain.tokens
    assert compilations() == counted and session.buffers.written == 0


def test_a_call_may_leave_nothing():
    session = AdaptiveSession(toys.make_params(), "always-head", options=OPTIONS)
    session.decode(toys.PROMPTS[0], adapt=False, **toys.OPTIONS)
    assert session.buffers.ring is None and not session.events


def learned(**changes):
    """A session whose drafter has learned the toy's prompts, and how to change its next updates."""
    session = AdaptiveSession(toys.make_params(), "always-full", options=OPTIONS)
    for prompt in toys.ROUNDS:
        session.decode(prompt, **toys.OPTIONS)
    session.decider = session.decider._replace(**changes)
    return session


def replace_steps(session, monkeypatch, change):
    """Let every gradient step give `change(theta)` instead."""
    monkeypatch.setattr(
        session.trainer.learner,
        "step",
        lambda train, *_, **__: (train._replace(theta=change(train.theta)), {}),
    )


def serve_updates(session):
    """The updates that the toy's prompts cause, and the weights before them."""
    before, count = hash_weights(session.serving), len(session.events)
    for prompt in toys.ROUNDS:
        session.decode(prompt, **toys.OPTIONS)
    return before, [event["update"] for event in session.events[count:] if "update" in event]


def test_bad_updates_are_refused(monkeypatch):
    """Updates that unlearn everything lose the paired test, and change nothing."""
    session = learned(gated=True)
    version, moments = session.version, hash_weights(session.trainer.train.moments)
    replace_steps(session, monkeypatch, lambda theta: copy_weights(session.trainer.start))
    before, updates = serve_updates(session)
    assert updates and all(u["published"] is None and u["up"] <= u["down"] for u in updates)
    assert hash_weights(session.serving) == before and session.version == version
    assert hash_weights(session.trainer.train.moments) == moments


def test_weights_that_are_not_finite_are_refused(monkeypatch):
    """Without a test, too; and the next update starts from the weights that decode."""
    session = learned()
    with monkeypatch.context() as patch:
        replace_steps(session, patch, lambda theta: jax.tree.map(lambda leaf: leaf * np.nan, theta))
        before, updates = serve_updates(session)
    assert updates and all(update["published"] is None for update in updates)
    assert hash_weights(session.serving) == before
    assert hash_weights(session.trainer.train.theta) == before  # both are float32
    _, updates = serve_updates(session)
    assert all(update["published"] is not None for update in updates)


def counting():
    """A decider that trains on every query, goes back to version 0 once, and counts what it saw."""

    def decide(state, query):
        back = 0 if query.index == 2 else None
        return state | {"queries": state["queries"] + 1}, Decision("full", "full", back)

    def observe(state, update):
        return state | {"version": update.published}

    return Decider(lambda: {"queries": 0, "version": 0}, decide, observe)


@pytest.mark.thorough
def test_a_session_goes_on_where_it_ended(tmp_path):
    params = toys.make_params()
    session = AdaptiveSession(params, counting(), options=OPTIONS, folder=tmp_path)
    for prompt in toys.ROUNDS[:4]:  # the third goes back and publishes, so it writes twice
        session.decode(prompt, **toys.OPTIONS)
    assert session.version == 4
    session.close()
    other = AdaptiveSession(params, counting(), options=OPTIONS, folder=tmp_path)
    assert other.version == 4 and other.queries == 4
    assert other.state == session.state == {"queries": 4, "version": 4}
    for mine, theirs in (
        (other.serving, session.serving),
        (other.trainer.train.moments, session.trainer.train.moments),
    ):
        assert hash_weights(mine) == hash_weights(theirs)
    other.decode(toys.ROUNDS[0], **toys.OPTIONS)
    assert other.version == 5
    other.close()
    refuse_other_folders(params, tmp_path)


def refuse_other_folders(params, folder):
    """The versions of a folder serve the weights and the decider that they were made for, alone."""
    leaves = {
        name: jax.tree.map(lambda x: x.at[:1].multiply(2), w) for name, w in params.target.items()
    }
    drafters = {"jetspec": jax.tree.map(lambda x: x + 1, params.drafters["jetspec"])}
    for given, decider, what in (
        (params.replace(target=leaves), counting(), "target"),
        (params.replace(drafters=drafters), counting(), "drafter"),
        (params, "bandit-paired", "decider"),
    ):
        with pytest.raises(ValueError, match=f"are of another {what}: give another folder"):
            AdaptiveSession(given, decider, options=OPTIONS, folder=folder)


def test_a_version_is_written_before_it_decodes(tmp_path, monkeypatch):
    """A process that dies while it writes has decoded nothing with the new version."""
    session = AdaptiveSession(toys.make_params(), "always-full", options=OPTIONS, folder=tmp_path)
    before = hash_weights(session.serving)

    def die(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(session._served.files, "save", die)
    with pytest.raises(KeyboardInterrupt):
        for prompt in toys.ROUNDS:
            session.decode(prompt, **toys.OPTIONS)
    assert hash_weights(session.serving) == before
    session.close()


def test_negative_seeds_are_seeds():
    session = AdaptiveSession(toys.make_params(), seed=-1)
    np.random.default_rng([session.seed, 0])  # as drawn from after each call


@pytest.mark.parametrize(("given", "lookup"), [({}, False), ({"lookup": True}, True)])
def test_copied_tokens_are_left_out_unless_asked_for(monkeypatch, given, lookup):
    """They are no evidence of the drafter."""
    seen = []

    def record(*arguments, **options):
        seen.append(options["speculation"].lookup)
        raise InterruptedError

    monkeypatch.setattr("jaxspec.adapt.session.prepare", record)
    with pytest.raises(InterruptedError):
        AdaptiveSession(toys.make_params()).decode(toys.PROMPTS[0], **group_options(**given))
    assert seen == [lookup]


def test_mistakes_are_named(tmp_path):
    params = toys.make_params()
    with pytest.raises(ValueError, match="unknown decider 'best': choose one of never, osd"):
        AdaptiveSession(params, "best")
    with pytest.raises(ValueError, match="'ar' has no weights to adapt: choose one of jetspec"):
        AdaptiveSession(params, drafter="ar")
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError, match="file is a file: give a folder"):
        AdaptiveSession(params, folder=tmp_path / "file")
    with pytest.raises(ValueError, match="rows is 0: give at least 1"):
        AdaptOptions(rows=0)
    with pytest.raises(ValueError, match="segments is 0: give at least 1"):
        AdaptOptions(segments=0)
    with pytest.raises(ValueError, match="room of full is 0: give at least 1"):
        AdaptOptions(room={"head": 5, "full": 0})


SERVE = """
    import sys
    sys.path[:0] = {paths!r}
    import adapt_toys as toys
    from jaxspec.adapt import AdaptiveSession
    from jaxspec.adapt.publish import hash_weights
    session = AdaptiveSession(toys.make_params(), "always-full", options=toys.ADAPT, folder={folder!r})
    print("resumed", session.version, hash_weights(session.serving), flush=True)
    for prompt in toys.ROUNDS * 50:
        session.decode(prompt, **toys.OPTIONS)
        print("serves", session.version, hash_weights(session.serving), flush=True)
"""


@pytest.mark.slow
def test_kill_loses_no_published_version(tmp_path):
    tests = Path(__file__).parents[1]
    paths = [str(tests / "helpers"), str(tests.parent)]
    code = textwrap.dedent(SERVE.format(paths=paths, folder=str(tmp_path)))

    def serve():
        return subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=os.environ
        )

    known = (0, None)
    for wait in (0.0, 0.3):
        process = serve()
        first = process.stdout.readline().split()
        assert int(first[1]) >= known[0]
        if int(first[1]) == known[0] and known[1]:
            assert first[2] == known[1]
        while (line := process.stdout.readline().split()) and int(line[1]) < known[0] + 2:
            pass
        time.sleep(wait)  # into the next decode or update
        os.kill(process.pid, signal.SIGKILL)
        lines = [line, *(rest.split() for rest in process.stdout.read().splitlines())]
        process.wait()
        process.stdout.close()
        known = max((int(v), bits) for _, v, bits in (one for one in lines if len(one) == 3))
    process = serve()
    final = process.stdout.readline().split()
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert int(final[1]) >= known[0]
    if int(final[1]) == known[0]:
        assert final[2] == known[1]
