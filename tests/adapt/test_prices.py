"""What deciders count: seconds of this device or of another, and prices of first updates."""

from types import SimpleNamespace

import adapt_toys as toys
import numpy as np
import pytest

from jaxspec.adapt import AdaptiveSession
from jaxspec.adapt.deciders import Decider, Decision
from jaxspec.adapt.prices import price_updates


@pytest.mark.thorough
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
    session = AdaptiveSession(
        toys.make_params(), decider, options=toys.ADAPT, prices=toys.Priced(2.0, 3.0, 0.5)
    )
    for prompt in toys.ROUNDS[:4]:
        session.decode(prompt, **toys.OPTIONS)
    assert [one.seconds for one in updates] == [25.0]
    assert [event["passes"] for event in session.events] == [0, 2, 0, 0]
    rounds = [2.0 * one.rounds for one in queries]
    assert [one.seconds for one in queries] == [*rounds[:2], rounds[2] + 25.0, rounds[3]]
    # Told beforehand, for as many segments as a test reads later: 8 batches of 4, before and after.
    assert queries[-1].prices == {"head": 32.0, "full": 32.0}


@pytest.mark.thorough
def test_an_update_may_train_on_the_newest_segments():
    """Also on those of earlier updates; and it is priced as soon as its decider could make it."""
    queries = []

    def decide(state, query):
        queries.append(query)
        return state, Decision("both", "head" if query.index in (3, 5) else "skip")

    decider = Decider(dict, decide, steps=1, room={"head": 1, "full": 10**6}, recent=3)
    session = AdaptiveSession(
        toys.make_params(), decider, options=toys.ADAPT, prices=toys.Priced(2.0, 3.0)
    )
    for prompt in toys.ROUNDS[:6]:
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
    session = AdaptiveSession(
        toys.make_params(), decider, options=toys.ADAPT, prices=toys.Priced(2.0, 3.0)
    )
    priced = []
    for prompt in toys.ROUNDS[:6]:
        session.decode(prompt, **toys.OPTIONS)
        priced.append(session.buffers.written >= toys.ADAPT.learner.batch)
    assert [bool(query.prices) for query in queries] == priced
    assert True in priced and False in priced


@pytest.mark.parametrize(
    ("keeps", "read", "head", "full"),
    # Tests of ten segments are three batches, twice; each of eight steps takes three passes. Half as
    # many rounds are tested as trained on, in the batch that is timed.
    [
        (False, 0.5, 0.5 * 24 + 0.25 * 6, 0.5 * 24 + 0.25 * 6),
        # A read takes 0.1 of the 0.5, and the trunk the rest: once, or for a full update twice.
        (True, 0.1, 0.1 * 24 + 3 * 0.2 + 6 * 0.05, 0.5 * 24 + 6 * 0.2 + 6 * 0.05),
    ],
)
def test_first_updates_are_priced_by_a_pass_over_one_batch(keeps, read, head, full):
    class Fake:
        learner = SimpleNamespace(options=SimpleNamespace(batch=4))

        def redrafts(self, action):
            return action == "full" or not keeps

        def time_pass(self, ring, wanted):
            assert wanted is ring.weight
            return 0.5, read

    held, weight = np.zeros((2, 6, 8, 3))
    held[:4, :2, 1], held[4:], weight[:4, :4, :2] = 1, 1, 0.3
    priced = price_updates(Fake(), SimpleNamespace(held=held, weight=weight), 10, 8, None)
    assert priced == {"head": pytest.approx(head), "full": pytest.approx(full)}


def test_first_updates_from_kept_outputs_are_priced_by_a_model():
    """Eight steps of 0.3 instead of 3 s; three passes of the trunk, and six reads of a tenth."""
    fake = SimpleNamespace(
        learner=SimpleNamespace(options=SimpleNamespace(batch=4)),
        redrafts=lambda action: action == "full",
    )
    priced = price_updates(fake, None, 10, 8, toys.Priced(2.0, 3.0, 0.5))
    assert priced == {
        "head": pytest.approx(8 * 0.3 + 3 * 0.5 + 6 * 0.05),
        "full": pytest.approx(8 * 3.0 + 6 * 0.5 + 6 * 0.05),
    }


def test_a_pass_that_compiles_is_timed_again(monkeypatch):
    session = AdaptiveSession(toys.make_params(), toys.scripted([]), options=toys.ADAPT)
    session.decode(toys.ROUNDS[0], **toys.OPTIONS)
    passes, ring, count = [], session.buffers.ring, iter(())

    def judge(*args):
        passes.append(len(args[2]))
        compiled[0] += next(count)

    compiled = [3]
    monkeypatch.setattr(session.trainer, "_judge", judge)
    monkeypatch.setattr("jaxspec.adapt.updates.compilations", lambda: compiled[0])
    for compiles in ([1, 0], [0]):  # what each pass compiles
        passes.clear()
        count = iter(compiles)
        whole, read = session.trainer.time_pass(ring, ring.weight)
        assert whole == read >= 0  # nothing is kept
        assert passes == [toys.ADAPT.learner.batch] * len(compiles)
