"""Sessions: the text never changes, versions survive, decisions replay to the same bits."""

import dataclasses
import itertools
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace

import adapt_toys as toys
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from slow_cases import slow_except

import jaxspec
from jaxspec.adapt import AdaptOptions, Session, replay
from jaxspec.adapt.deciders import Decider, Decision
from jaxspec.adapt.gate import count_flips
from jaxspec.adapt.prices import price_updates
from jaxspec.adapt.publish import copy_weights, hash_weights, publish
from jaxspec.adapt.updates import reached
from jaxspec.adapt.versions import Versions
from jaxspec.engine.compilations import compilations
from jaxspec.engine.loop import run
from jaxspec.engine.session import prepare, run_prefill

OPTIONS = toys.ADAPT
ROUNDS = [toys.PROMPTS[i % 4] for i in range(8)]


@dataclasses.dataclass
class Priced:
    """A device whose rounds, gradient steps and passes take as many seconds as a test says."""

    round_seconds: float
    seconds: float
    passes: float = 0.0
    load_seconds: float = 0.0

    def step_seconds(self, action, positions):
        return self.seconds

    def pass_seconds(self, positions):
        return self.passes


@pytest.mark.slow
@pytest.mark.parametrize("temperature", slow_except([1.0], [0.0, 1.0]))
def test_text_is_that_of_a_session_that_never_learns(temperature):
    params = toys.make_params()
    target = hash_weights(params.target)
    given = hash_weights(params.drafters)
    session = Session(params, "always-full", options=OPTIONS)
    options = toys.OPTIONS | dict(temperature=temperature, seed=3)
    for prompt in ROUNDS:
        plain = jaxspec.decode(params, prompt, **options)
        assert session.decode(prompt, **options).tokens == plain.tokens
    assert session.version >= 3
    assert hash_weights(session.serving) != hash_weights(params.drafters["jetspec"]["params"])
    assert hash_weights(params.target) == target and hash_weights(params.drafters) == given


@pytest.mark.parametrize("temperature", slow_except([1.0], [0.0, 1.0]))
def test_text_stays_when_every_round_has_other_weights(temperature):
    params, random = toys.make_params(), np.random.default_rng(0)
    options = toys.OPTIONS | dict(temperature=temperature, seed=5)
    wanted = jaxspec.decode(params, toys.PROMPTS[0], **options).tokens
    session = prepare(params, toys.PROMPTS[0], **options)
    state, served = run_prefill(session), copy_weights(params.drafters["jetspec"]["params"])
    while not bool(state.done.all()):
        noise = jax.tree.map(
            lambda leaf: jnp.asarray(random.normal(scale=0.2, size=leaf.shape), jnp.float32), served
        )
        served = publish(served, noise)
        now = params.replace(drafters={"jetspec": {"params": served}})
        state = run(now, session.request, state, np.int32(1), config=session.config)
    assert np.asarray(state.tokens)[0, : len(wanted)].tolist() == wanted


def test_nothing_compiles_after_the_first_updates():
    session = Session(toys.make_params(), "always-head", options=OPTIONS)
    for prompt in ROUNDS:
        session.decode(prompt, **toys.OPTIONS)
    counted, version = compilations(), session.version
    for prompt in ROUNDS:
        session.decode(prompt, **toys.OPTIONS)
    assert session.version > version and compilations() == counted


@pytest.mark.parametrize(
    "decider",
    [
        "bandit-paired",
        *(pytest.param(one, marks=pytest.mark.slow) for one in ("bandit-paper", "osd", "random")),
    ],
)
def test_events_replay_to_the_same_bits(decider):
    params = toys.make_params()
    # Where updates are cheap; on this machine they are not, and bandit-paired makes none.
    session = Session(params, decider, options=OPTIONS, seed=7, prices=Priced(1.0, 1e-3))
    prompts = ROUNDS * 3
    for prompt in prompts:
        session.decode(prompt, domain="toy", **toys.OPTIONS)
    assert any("update" in event for event in session.events)
    json.dumps(session.events)
    again = replay(
        params, session.events, prompts, decider, options=OPTIONS, seed=7, **toys.OPTIONS
    )
    assert hash_weights(again.serving) == hash_weights(session.serving)
    assert again.version == session.version


def test_the_cost_of_an_update_is_without_its_compilation(monkeypatch):
    ticks, compiling = itertools.count(), itertools.count(0.0, 0.75)
    session = learned()
    session.clock = lambda: float(next(ticks))
    monkeypatch.setattr("jaxspec.adapt.session.compile_seconds", lambda: next(compiling))
    _, updates = serve_updates(session)
    assert updates and {update["seconds"] for update in updates} == {0.25}
    assert {e["update_seconds"] for e in session.events[-8:] if "update" in e} == {3.0}


def test_deciders_may_count_the_seconds_of_another_device():
    """A round of 2 s, a step of 3 s and a pass of half a second: an update takes 8 steps, and two
    passes for the few segments that it tests. The query after the update hears of them too.
    """
    queries, updates = [], []

    def decide(state, query):
        queries.append(query)
        return state, Decision("both", "head" if query.index == 1 else "skip")

    def observe(state, update):
        updates.append(update)
        return state

    decider = Decider(dict, decide, observe, gated=True, steps=8)
    session = Session(toys.make_params(), decider, options=toys.ADAPT, prices=Priced(2.0, 3.0, 0.5))
    for prompt in ROUNDS[:4]:
        session.decode(prompt, **toys.OPTIONS)
    assert [one.seconds for one in updates] == [25.0]
    assert [event["passes"] for event in session.events] == [0, 2, 0, 0]
    rounds = [2.0 * one.rounds for one in queries]
    assert [one.seconds for one in queries] == [*rounds[:2], rounds[2] + 25.0, rounds[3]]
    # Told beforehand, for as many segments as a test reads later: 8 batches of 4, before and after.
    assert queries[-1].prices == {"head": 32.0, "full": 32.0}


def test_an_update_may_train_on_the_newest_segments():
    """Also on those of earlier updates; and it is priced as soon as its decider could make it."""
    queries = []

    def decide(state, query):
        queries.append(query)
        return state, Decision("both", "head" if query.index in (3, 5) else "skip")

    decider = Decider(dict, decide, steps=1, room={"head": 1, "full": 10**6}, recent=3)
    session = Session(toys.make_params(), decider, options=toys.ADAPT, prices=Priced(2.0, 3.0))
    for prompt in ROUNDS[:6]:
        session.decode(prompt, **toys.OPTIONS)
    assert [e["segments"] for e in session.events if "update" in e] == [3, 3]
    assert queries[0].prices == {"head": 3.0, "full": 3.0}


def test_first_updates_are_priced_once_there_is_a_batch():
    """Long before an update could be made, so that a rule may rest if it is dear."""
    queries = []

    def decide(state, query):
        queries.append(query)
        return state, Decision("both")

    decider = Decider(dict, decide, steps=1, room={"head": 10**6, "full": 10**6})
    session = Session(toys.make_params(), decider, options=toys.ADAPT, prices=Priced(2.0, 3.0))
    priced = []
    for prompt in ROUNDS[:6]:
        session.decode(prompt, **toys.OPTIONS)
        priced.append(session.buffers.written >= toys.ADAPT.learner.batch)
    assert [bool(query.prices) for query in queries] == priced
    assert True in priced and False in priced


def test_first_updates_are_priced_by_a_pass_over_one_batch():
    class Fake:
        learner = SimpleNamespace(options=SimpleNamespace(batch=4))

        def time_pass(self, ring, wanted):
            assert wanted is ring.weight
            return 0.5

    # Tests of ten segments are three batches, twice; each of eight steps takes three passes. Half as
    # many rounds are tested as trained on, in the batch that is timed.
    held, weight = np.zeros((2, 6, 8, 3))
    held[:4, :2, 1], held[4:], weight[:4, :4, :2] = 1, 1, 0.3
    priced = price_updates(Fake(), SimpleNamespace(held=held, weight=weight), 10, 8, None)
    assert priced == {"head": 0.5 * 24 + 0.25 * 6, "full": 0.5 * 24 + 0.25 * 6}


def test_a_session_that_rests_cuts_no_evidence():
    """The decider says of every query whether the next one's evidence is wanted."""
    wanted = [True, False, False, True, True]
    decider = scripted([Decision(gather=one) for one in wanted])
    session = Session(toys.make_params(), decider, options=OPTIONS)
    written = []
    for i in range(5):
        session.decode(ROUNDS[i], **toys.OPTIONS)
        written.append(session.buffers.written)
    assert 0 < written[0] < written[1] == written[2] == written[3] < written[4]
    assert [event["positions"] > 0 for event in session.events] == [True, *wanted[:-1]]


def test_a_decider_that_never_learns_runs_the_plain_program():
    params = toys.make_params()
    session = Session(params, "never", options=OPTIONS)
    plain = jaxspec.decode(params, ROUNDS[0], lookup=False, **toys.OPTIONS)
    counted = compilations()
    assert session.decode(ROUNDS[0], **toys.OPTIONS).tokens == plain.tokens
    assert compilations() == counted and session.buffers.written == 0


def test_a_call_may_leave_nothing():
    session = Session(toys.make_params(), "always-head", options=OPTIONS)
    session.decode(toys.PROMPTS[0], adapt=False, **toys.OPTIONS)
    assert session.buffers.ring is None and not session.events


def scripted(decisions):
    def decide(state, query):
        return state, decisions[query.index] if query.index < len(decisions) else Decision()

    return Decider(dict, decide)


def test_restored_weights_have_the_exact_bits():
    decisions = [Decision("full", "full"), Decision("full", "full"), Decision(restore=1)]
    session = Session(toys.make_params(), scripted(decisions), options=OPTIONS)
    for prompt in ROUNDS[:4]:
        session.decode(prompt, **toys.OPTIONS)
    first, second, third = (session.events[i]["weights"] for i in range(3))
    assert first == third != second and session.version == 1
    moments = session.trainer.train.moments["full"]
    assert not any(np.asarray(leaf).any() for leaf in jax.tree.leaves(moments))


def judging(decisions, queries, elected):
    """A decider that repeats decisions, elects what it is told and keeps the flips in its state."""

    def decide(state, query):
        queries.append(query)
        return state, decisions[query.index] if query.index < len(decisions) else Decision()

    def elect(state, flips):
        return state | {"flips": {version: list(one) for version, one in flips.items()}}, elected

    return Decider(dict, decide, elect=elect, steps=16)


@pytest.mark.parametrize("elected", slow_except([1], [None, 1]))
def test_an_elected_version_decodes_again(elected):
    """Versions 0 and 1 are compared with the newest on the evidence since query 8, and once more by
    hand. The next query hears of what that took: passes, and a load of version 1."""
    full, queries = Decision("full", "full"), []
    decisions = [full] * 8 + [Decision("both"), Decision("both", since=8, judge=(0, 1))]
    decider = judging(decisions, queries, elected)
    prices = Priced(1.0, 0.0, 0.5, load_seconds=10.0)
    prompts = [*ROUNDS, *ROUNDS[:3]]
    session = Session(toys.make_params(), decider, options=OPTIONS, prices=prices)
    for prompt in prompts[:10]:
        session.decode(prompt, **toys.OPTIONS)
    newest, ring, trainer = session.buffers.newest(99), session.buffers.ring, session.trainer
    assert len(newest) == session.buffers.written - session._firsts[8] >= 2
    wanted, event, versions = reached(ring), session.events[9], session._served.versions
    hits = [
        trainer.learner.judge(
            versions.find(v)[1], trainer.rest, trainer.target, ring, newest, wanted
        )[0]
        for v in (0, 1, 8)
    ]
    inside = np.asarray(wanted)[newest]
    assert inside.sum() > np.asarray(ring.held)[newest].sum() > 0
    flips = {v: count_flips(hits[-1], hits[v], inside) for v in (0, 1)}
    assert session.state["flips"] == {v: list(one) for v, one in flips.items()}
    assert event["judged"] == {v: one._asdict() for v, one in flips.items()}
    assert flips[0].up + flips[0].down > 0 and (event["loads"], event["restored"]) == (1, elected)
    session.decode(prompts[10], **toys.OPTIONS)
    took = queries[10].seconds - queries[10].rounds
    assert event["passes"] >= 3 and took == 10.0 + 0.5 * event["passes"]
    assert session.version == queries[10].version == (8 if elected is None else elected)
    weights = {e["version"]: e["weights"] for e in session.events if "update" in e}
    assert hash_weights(session.serving) == weights[session.version]
    given = toys.make_params(), session.events, prompts, decider
    again = replay(*given, options=OPTIONS, **toys.OPTIONS)
    assert hash_weights(again.serving) == hash_weights(session.serving)


def test_a_trained_text_is_judged_at_held_out_positions():
    full = Decision("full", "full")
    decider = judging([full, full._replace(judge=(0,)), Decision(judge=(0,))], [], None)
    session = Session(toys.make_params(), decider, options=OPTIONS)
    for prompt in ROUNDS[:3]:
        session.decode(prompt, **toys.OPTIONS)
    held = np.asarray(session.buffers.ring.held)[session.buffers.newest(9)].sum()
    assert session.events[2]["judged"][0]["held"] == held


def test_versions_may_be_compared_on_the_newest_text_alone():
    full = Decision("full", "full")
    decisions = [full, full, Decision("both"), Decision("both", judge=(0,), judge_since=3)]
    session = Session(toys.make_params(), judging(decisions, [], None), options=OPTIONS)
    for prompt in ROUNDS[:4]:
        session.decode(prompt, **toys.OPTIONS)
    fresh = session.buffers.newest(99, session._firsts[3])
    assert 0 < len(fresh) < len(session.buffers.newest(99))
    reach = np.asarray(reached(session.buffers.ring))[fresh].sum()
    assert session.events[3]["judged"][0]["held"] == reach


def learned(**changes):
    """A session whose drafter has learned the toy's prompts, and how to change its next updates."""
    session = Session(toys.make_params(), "always-full", options=OPTIONS)
    for prompt in ROUNDS:
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
    for prompt in ROUNDS:
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


def test_a_session_goes_on_where_it_ended(tmp_path):
    params = toys.make_params()
    session = Session(params, counting(), options=OPTIONS, folder=tmp_path)
    for prompt in ROUNDS[:4]:  # the third goes back and publishes, so it writes twice
        session.decode(prompt, **toys.OPTIONS)
    assert session.version == 4
    session.close()
    other = Session(params, counting(), options=OPTIONS, folder=tmp_path)
    assert other.version == 4 and other.queries == 4
    assert other.state == session.state == {"queries": 4, "version": 4}
    for mine, theirs in (
        (other.serving, session.serving),
        (other.trainer.train.moments, session.trainer.train.moments),
    ):
        assert hash_weights(mine) == hash_weights(theirs)
    other.decode(ROUNDS[0], **toys.OPTIONS)
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
            Session(given, decider, options=OPTIONS, folder=folder)


def test_a_version_is_written_before_it_decodes(tmp_path, monkeypatch):
    """A process that dies while it writes has decoded nothing with the new version."""
    session = Session(toys.make_params(), "always-full", options=OPTIONS, folder=tmp_path)
    before = hash_weights(session.serving)

    def die(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(session._served.files, "save", die)
    with pytest.raises(KeyboardInterrupt):
        for prompt in ROUNDS:
            session.decode(prompt, **toys.OPTIONS)
    assert hash_weights(session.serving) == before
    session.close()


def test_negative_seeds_are_seeds():
    session = Session(toys.make_params(), seed=-1)
    np.random.default_rng([session.seed, 0])  # as drawn from after each call


@pytest.mark.parametrize(("given", "lookup"), [({}, False), ({"lookup": True}, True)])
def test_copied_tokens_are_left_out_unless_asked_for(monkeypatch, given, lookup):
    """They are no evidence of the drafter."""
    seen = []

    def record(*arguments, **options):
        seen.append(options["lookup"])
        raise InterruptedError

    monkeypatch.setattr("jaxspec.adapt.session.prepare", record)
    with pytest.raises(InterruptedError):
        Session(toys.make_params()).decode(toys.PROMPTS[0], **given)
    assert seen == [lookup]


def test_mistakes_are_named(tmp_path):
    params = toys.make_params()
    with pytest.raises(ValueError, match="unknown decider 'best': choose one of never, osd"):
        Session(params, "best")
    with pytest.raises(ValueError, match="'ar' has no weights to adapt: choose one of jetspec"):
        Session(params, method="ar")
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError, match="file is a file: give a folder"):
        Session(params, folder=tmp_path / "file")
    with pytest.raises(ValueError, match="rows is 8: give at least 64"):
        Session(params, options=AdaptOptions(rows=8))
    with pytest.raises(ValueError, match="segments is 0: give at least 1"):
        AdaptOptions(segments=0)
    with pytest.raises(ValueError, match="room of full is 0: give at least 1"):
        AdaptOptions(room={"head": 5, "full": 0})


def test_old_versions_are_forgotten_but_the_first():
    versions = Versions({"a": np.zeros(1)}, keep=2)
    for number in range(1, 6):
        assert versions.add({"a": np.full(1, number)}) == number
    assert [versions.find(version)[0] for version in (5, 4, 3, 0)] == [5, 4, 0, 0]
    assert versions.find(4)[1]["a"] == 4


SERVE = """
    import sys
    sys.path[:0] = {paths!r}
    import adapt_toys as toys
    from test_session import OPTIONS, ROUNDS
    from jaxspec.adapt import Session
    from jaxspec.adapt.publish import hash_weights
    session = Session(toys.make_params(), "always-full", options=OPTIONS, folder={folder!r})
    print("resumed", session.version, hash_weights(session.serving), flush=True)
    for prompt in ROUNDS * 50:
        session.decode(prompt, **toys.OPTIONS)
        print("serves", session.version, hash_weights(session.serving), flush=True)
"""


@pytest.mark.slow
def test_kill_loses_no_published_version(tmp_path):
    here = Path(__file__).parent
    paths = [str(here), str(here.parent), str(here.parent.parent)]
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
