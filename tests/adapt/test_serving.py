"""An engine whose drafter learns: the texts stay, versions are swapped between visits."""

import dataclasses
import json
import logging
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import adapt_toys as toys
import pytest
from serve_toys import make
from slow_cases import slow_except
from virtual_devices import run_on_devices

import jaxspec
from jaxspec.adapt import AdaptiveSession
from jaxspec.adapt.deciders import Decider, Decision
from jaxspec.adapt.publish import hash_weights
from jaxspec.adapt.serving import make_adaptive_engine
from jaxspec.adapt.serving.student import describe
from jaxspec.adapt.turns import Ended, SharedDevice
from jaxspec.call.options import group_options
from jaxspec.core.runtime.compilations import compilations
from jaxspec.serve import ServeRequest

# The programs are those of tests/serve/test_gatherer.py.
SHAPE = dict(builder="best_first", budget=8, edges=(2, 16), rounds=4)
OPTIONS = dataclasses.replace(toys.ADAPT, rows=60)


def start(decider, **options):
    given = dict(factory=make_adaptive_engine, options=OPTIONS, **SHAPE)
    engine = make(toys.make_params(), decider, **given | options)
    engine.warm_up()
    return engine


def requests(count, temperature=0.0, tokens=40, **options):
    return [
        ServeRequest(
            (*toys.PROMPTS[i % 4], i % 30),
            max_new_tokens=tokens,
            temperature=temperature,
            seed=i,
            **options,
        )
        for i in range(count)
    ]


def serve(engine, sent, waits=False):
    """Return the tokens of requests, and the versions that decoded each.

    Args:
      waits: let training catch up between visits of a busy engine.
    """
    ids = [engine.submit(one) for one in sent]
    found, versions = {id: [] for id in ids}, {id: set() for id in ids}
    while not engine.idle:
        if waits:
            catch_up(engine)
        for update in engine.visit():
            found[update.id] += update.tokens
            versions[update.id].add(engine.adapts.version)
    return list(found.values()), list(versions.values())


def catch_up(engine):
    engine.adapts.wait()


def expect(sent):
    """The tokens of `decode` alone."""
    params, found = toys.make_params(), []
    for one in sent:
        given = dict(temperature=one.temperature, seed=one.seed, drafter="ar", capacity=320)
        given |= dict(max_new_tokens=one.max_new_tokens)
        found.append(jaxspec.decode(params, list(one.tokens), **group_options(**given)).tokens)
    return found


def weights(engine):
    return engine._device.params.drafter("jetspec")["params"]


@pytest.mark.parametrize("temperature", slow_except([1.0], [0.0, 1.0]))
def test_texts_stay_while_versions_are_swapped_within_them(temperature):
    """At both temperatures, token by token; and nothing compiles once each update was made once."""
    engine, given = start("always-full"), hash_weights(toys.make_params().drafters)
    sent = requests(9, temperature)
    tokens, versions = serve(engine, sent, waits=True)
    assert tokens == expect(sent)
    assert max(map(len, versions)) > 1  # some text was drafted by several versions
    assert hash_weights(weights(engine)) != hash_weights(
        toys.make_params().drafter("jetspec")["params"]
    )
    assert hash_weights(toys.make_params().drafters) == given
    counted, version = compilations(), engine.adapts.version
    tokens, _ = serve(engine, sent[:4], waits=True)
    assert engine.adapts.version > version and compilations() == counted
    found = engine.counters()["adaptation"]
    assert found["on"] and found["queries"] >= 12 and found["failures"] == 0
    assert found["published"] == found["updates"] >= found["version"] > 2
    engine.close()


def test_what_decodes_is_the_newest_version():
    engine = start("always-full")
    serve(engine, requests(4))
    catch_up(engine)
    engine.visit()
    student = engine.adapts
    assert student.version == student.adaptation.version > 0
    assert hash_weights(weights(engine)) == hash_weights(student.adaptation.serving)
    engine.close()
    assert student.adaptation.buffers.ring is None  # texts are forgotten


def test_requests_that_opt_out_leave_nothing():
    engine = start("always-full")
    serve(engine, requests(3, adapt=False))
    catch_up(engine)
    assert engine.adapts.adaptation.buffers.ring is None
    assert engine.counters()["adaptation"]["queries"] == 0
    engine.close()


@pytest.mark.thorough
def test_a_decider_that_never_learns_leaves_the_engine_as_it_is():
    engine = start("never")
    assert engine.adapts is None and engine._device.state.evidence is None


def test_an_error_of_training_switches_it_off(monkeypatch, caplog):
    """Serving goes on with the version that it has; one line is logged, without the message."""

    def fail(*_, **__):
        raise ValueError("a text of somebody")

    engine = start("always-full")
    monkeypatch.setattr(engine.adapts.adaptation.trainer, "update", fail)
    sent = requests(6)
    with caplog.at_level(logging.ERROR, "jaxspec.serve"):
        tokens, _ = serve(engine, sent, waits=True)
    assert tokens == expect(sent)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("adaptation is off, and serving goes on: ValueError (test_serving.py:")
    found = engine.counters()["adaptation"]
    assert (found["on"], found["failures"], found["version"]) == (False, 1, 0)
    assert found["left_out"] > 0
    engine.close()


def test_errors_of_files_are_told():
    try:
        raise OSError(28, "No space left on device", "/versions")
    except OSError as error:
        assert "No space left on device" in describe(error) and "\n" not in describe(error)


def test_a_version_is_written_before_it_decodes(tmp_path, monkeypatch):
    """An engine that ends in between has decoded nothing with it; the next begins with it."""
    engine = start("always-full", folder=tmp_path)
    first, student = hash_weights(weights(engine)), engine.adapts
    monkeypatch.setattr(student, "publish", lambda params: None)  # it ends before the swap
    serve(engine, requests(4))
    catch_up(engine)
    assert hash_weights(weights(engine)) == first and student.version == 0
    newest, digest = student.adaptation.version, hash_weights(student.adaptation.serving)
    assert newest > 0
    engine.close()
    engine = start("always-full", folder=tmp_path)
    assert engine.adapts.version == newest and hash_weights(weights(engine)) == digest
    engine.close()
    # A session reads the folder too.
    session = AdaptiveSession(toys.make_params(), "always-full", options=OPTIONS, folder=tmp_path)
    assert session.version == newest
    session.close()


def test_queries_are_what_drafted_rounds_gave(monkeypatch):
    """Tokens, rounds, the load by which they are compared, and the version of most rounds."""
    queries = []

    def decide(state, query):
        queries.append(query)
        return state, Decision()

    engine = start(Decider(dict, decide))
    heard, hear = [], engine.adapts.hear
    monkeypatch.setattr(engine.adapts, "hear", lambda text: (heard.append(text), hear(text)))
    serve(engine, requests(2))
    serve(engine, requests(1))
    catch_up(engine)
    assert [query.domain for query in queries] == ["load 2", "load 2", "load 1"]
    for query, text in zip(queries, heard, strict=True):
        assert query.tokens == text.counts.sum() and query.rounds == len(text.counts)
        assert query.positions == text.rejected.sum() > 0 and query.version == 0
        assert query.seconds >= text.seconds > 0
    engine.close()


def test_a_pass_at_most_runs_between_two_visits():
    """Of three that wait; and a visit waits for the pass that runs."""
    turns, passes = SharedDevice(), []

    def train():
        turns.begin()
        for number in range(4):
            time.sleep(0.02)
            passes.append(number)
            turns.pause(None)
        turns.end()

    turns.begin_visit()
    thread = threading.Thread(target=train)
    thread.start()
    seen = []
    for _ in range(4):
        time.sleep(0.03)
        seen.append(len(passes))  # none while the engine has the device
        turns.end_visit()
        turns.begin_visit()
    assert seen == [0, 1, 2, 3]
    turns.end_visit()
    thread.join()
    assert passes == [0, 1, 2, 3]


def test_training_ends_at_a_pause():
    turns, ended = SharedDevice(), []

    def train():
        try:
            turns.begin()
            turns.pause(None)
        except Ended:
            ended.append(True)
        finally:
            turns.end()

    turns.begin_visit()
    thread = threading.Thread(target=train)
    thread.start()
    turns.close()
    thread.join(10)
    assert not thread.is_alive() and ended
    turns.end_visit()
    turns.begin_visit()  # nobody has the device


def test_mistakes_are_named(tmp_path):
    with pytest.raises(ValueError, match="unknown decider 'best': choose one of never, osd"):
        start("best")
    with pytest.raises(ValueError, match="'ar' has no weights to adapt"):
        start("osd", drafter="ar")
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError, match="file is a file: give a folder"):
        start("osd", folder=tmp_path / "file")


@pytest.mark.thorough
def test_a_drafter_learns_on_a_second_device_while_the_first_one_serves():
    """The target's layers stay on the first; nothing compiles for the versions that come back."""
    found = json.loads(run_on_devices(2, "adapt_two_devices.py", {}))
    assert found["places"] == {
        "target": [0],
        "decodes": [0],
        "state": [0],
        "learns": [1],
        "reads": [1],
    }
    assert not any(name.startswith("layers_") for name in found["head only"])
    assert found["equal"] and found["newest"] and found["given"]
    assert found["versions"][1] > found["versions"][0] > 0 and found["compiled"] == 0
    assert found["overlaps"] > 0


KILLED = """
    import dataclasses, os, signal, sys
    sys.path[:0] = {paths!r}
    import adapt_toys as toys
    from adapt.test_serving import requests, start, weights
    from jaxspec.adapt.publish import hash_weights
    engine = start("always-full", folder={folder!r})
    student = engine.adapts
    print("begins", student.version, hash_weights(weights(engine)), flush=True)
    publish, hand_over = student.publish, student.adaptation._served.published

    def handed(new):
        print("written", student.adaptation.version, hash_weights(new), flush=True)
        hand_over(new)

    def swap(params):
        if student._published is not None and student._published[1] >= {last}:
            os.kill(os.getpid(), signal.SIGKILL)  # between publication and use
        return publish(params)

    student.publish, student.adaptation._served.published = swap, handed
    for one in requests(30) * 9:
        engine.submit(one)
        while not engine.idle:
            engine.visit()
"""


@pytest.mark.slow
def test_a_version_is_not_lost_if_the_process_is_killed_before_it_decodes(tmp_path):
    tests = Path(__file__).parents[1]
    paths = [str(tests), str(tests / "helpers"), str(tests.parent)]
    newest = ["0", None]

    def check(version, digest):
        """A newer one may have been written, and not printed any more."""
        assert int(version) >= int(newest[0])
        assert version != newest[0] or newest[1] in (None, digest)

    for last in (2, 5):
        code = textwrap.dedent(KILLED.format(paths=paths, folder=str(tmp_path), last=last))
        done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        assert done.returncode == -signal.SIGKILL
        (_, *begun), *written = (line.split() for line in done.stdout.splitlines())
        check(*begun)
        newest = written[-1][1:]
        assert int(newest[0]) >= last
    engine = start("always-full", folder=tmp_path)
    student = engine.adapts
    check(str(student.version), hash_weights(weights(engine)))
    engine.close()
