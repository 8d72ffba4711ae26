"""Sessions: the text never changes, versions survive, decisions replay to the same bits."""

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

import jaxspec
from jaxspec.adapt import AdaptOptions, Session, replay
from jaxspec.adapt.cut import Shape
from jaxspec.adapt.deciders import Decider, Decision
from jaxspec.adapt.learner import LearnerOptions
from jaxspec.adapt.publish import copy_weights, hash_weights, publish
from jaxspec.engine.compilations import compilations
from jaxspec.engine.loop import run
from jaxspec.engine.session import prepare, run_prefill

OPTIONS = AdaptOptions(
    shape=Shape(rows=64, context=16, rounds=32, depths=4),
    learner=LearnerOptions(head_rate=1e-2, full_rate=1e-2, context=16),
    room={"head": 6, "full": 6},
    segments=8,
    rows=128,
)
ROUNDS = [toys.PROMPTS[i % 4] for i in range(8)]


def ticking():
    """A clock that advances by a second whenever it is read."""
    seconds = iter(range(10**6))
    return lambda: float(next(seconds))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
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


@pytest.mark.parametrize("temperature", [0.0, 1.0])
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


@pytest.mark.parametrize("decider", ["bandit-paper", "bandit-paired", "osd", "random"])
def test_events_replay_to_the_same_bits(decider):
    params = toys.make_params()
    session = Session(params, decider, options=OPTIONS, seed=7)
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


def test_bad_updates_are_refused():
    """With a rate a thousand times too high, an update loses the paired test and changes nothing."""
    wild = LearnerOptions(head_rate=30.0, full_rate=30.0, context=16)
    options = AdaptOptions(OPTIONS.shape, wild, OPTIONS.room, OPTIONS.segments, OPTIONS.rows)
    decider = scripted([Decision("full", "full")] * 6)._replace(gated=True, steps=4)
    session = Session(toys.make_params(), decider, options=options)
    before = hash_weights(session.serving)
    for prompt in ROUNDS:
        session.decode(prompt, **toys.OPTIONS)
    updates = [event["update"] for event in session.events if "update" in event]
    refused = [update for update in updates if update["published"] is None]
    assert len(refused) >= len(updates) - 1 and all(u["up"] <= u["down"] for u in refused)
    if len(refused) == len(updates):
        assert hash_weights(session.serving) == before


def test_a_session_goes_on_where_it_ended(tmp_path):
    params = toys.make_params()
    session = Session(params, "always-full", options=OPTIONS, folder=tmp_path)
    for prompt in ROUNDS[:4]:
        session.decode(prompt, **toys.OPTIONS)
    assert session.version > 0
    session.close()
    other = Session(params, "always-full", options=OPTIONS, folder=tmp_path)
    assert other.version == session.version
    assert hash_weights(other.serving) == hash_weights(session.serving)
    assert not [path for path in tmp_path.rglob("*") if b"tokens" in path.name.encode()]
    other.decode(ROUNDS[0], **toys.OPTIONS)
    other.close()


def test_mistakes_are_named():
    params = toys.make_params()
    with pytest.raises(ValueError, match="unknown decider 'best': choose one of never, osd"):
        Session(params, "best")
    with pytest.raises(ValueError, match="'ar' has no weights to adapt"):
        Session(params, method="ar")
    with pytest.raises(ValueError, match="rows is 8: give at least 64"):
        Session(params, options=AdaptOptions(rows=8))


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
