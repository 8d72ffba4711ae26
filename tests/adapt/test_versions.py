"""Older versions: restored to the bit, compared on the evidence, elected, and forgotten."""

import adapt_toys as toys
import jax
import numpy as np
import pytest
from slow_cases import slow_except

from jaxspec.adapt import AdaptiveSession, replay
from jaxspec.adapt.deciders import Decider, Decision
from jaxspec.adapt.gate import count_flips
from jaxspec.adapt.publish import hash_weights
from jaxspec.adapt.served import Versions
from jaxspec.adapt.updates import reached

OPTIONS = toys.ADAPT


@pytest.mark.thorough
def test_restored_weights_have_the_exact_bits():
    decisions = [Decision("full", "full"), Decision("full", "full"), Decision(restore=1)]
    session = AdaptiveSession(toys.make_params(), toys.scripted(decisions), options=OPTIONS)
    for prompt in toys.ROUNDS[:4]:
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
@pytest.mark.thorough
def test_an_elected_version_decodes_again(elected):
    """Versions 0 and 1 are compared with the newest on the evidence since query 8, and once more by
    hand. The next query hears of what that took: passes, and a load of version 1."""
    full, queries = Decision("full", "full"), []
    decisions = [full] * 8 + [Decision("both"), Decision("both", since=8, judge=(0, 1))]
    decider = judging(decisions, queries, elected)
    prices = toys.Priced(1.0, 0.0, 0.5, load_seconds=10.0)
    prompts = [*toys.ROUNDS, *toys.ROUNDS[:3]]
    session = AdaptiveSession(toys.make_params(), decider, options=OPTIONS, prices=prices)
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


@pytest.mark.thorough
def test_a_trained_text_is_judged_at_held_out_positions():
    full = Decision("full", "full")
    decider = judging([full, full._replace(judge=(0,)), Decision(judge=(0,))], [], None)
    session = AdaptiveSession(toys.make_params(), decider, options=OPTIONS)
    for prompt in toys.ROUNDS[:3]:
        session.decode(prompt, **toys.OPTIONS)
    held = np.asarray(session.buffers.ring.held)[session.buffers.newest(9)].sum()
    assert session.events[2]["judged"][0]["held"] == held


@pytest.mark.thorough
def test_versions_may_be_compared_on_the_newest_text_alone():
    full = Decision("full", "full")
    decisions = [full, full, Decision("both"), Decision("both", judge=(0,), judge_since=3)]
    session = AdaptiveSession(toys.make_params(), judging(decisions, [], None), options=OPTIONS)
    for prompt in toys.ROUNDS[:4]:
        session.decode(prompt, **toys.OPTIONS)
    fresh = session.buffers.newest(99, session._firsts[3])
    assert 0 < len(fresh) < len(session.buffers.newest(99))
    reach = np.asarray(reached(session.buffers.ring))[fresh].sum()
    assert session.events[3]["judged"][0]["held"] == reach


def test_old_versions_are_forgotten_but_the_first():
    versions = Versions({"a": np.zeros(1)}, keep=2)
    for number in range(1, 6):
        assert versions.add({"a": np.full(1, number)}) == number
    assert [versions.find(version)[0] for version in (5, 4, 3, 0)] == [5, 4, 0, 0]
    assert versions.find(4)[1]["a"] == 4
