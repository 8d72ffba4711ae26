"""Deciders on simulated streams with known gains: regret, false rollbacks, changes of sign."""

import json
import math

import numpy as np
import pytest

from benchmarks.adapt.simulate import Stream, measure_false_restores, simulate
from jaxspec.adapt.deciders import DECIDERS, Decider, Decision, Query, UpdateResult, make_decider
from jaxspec.adapt.deciders.bandit_paired import make_bandit_paired
from jaxspec.adapt.deciders.bandit_paper import make_bandit_paper
from jaxspec.adapt.deciders.base import ROOM, is_full
from jaxspec.adapt.deciders.windows import Watch, add_query, compare_windows
from jaxspec.adapt.gate import count_flips

PAPER, PAIRED = make_bandit_paper(), make_bandit_paired()


def query(
    index=0, pace=3.0, seconds=1.0, error=20.0, fresh=0, filled=0, draws=(0.9, 0.1, 0.5), domain=""
):
    both = {"head": filled, "full": filled}
    return Query(index, domain, int(30 * pace), 30, seconds, error, 30, both, fresh, draws)  # fmt: skip


def update(action="head", up=0, down=0, published=1):
    return UpdateResult(action, 0.1, up, down, 100, 40, published)


def serve(decider, queries, updates=()):
    """Decisions over some queries; an update is observed whenever the decider trains."""
    state, decisions, made = decider.init(), [], 0
    for one in queries:
        state, decision = decider.decide(state, one)
        decisions.append(decision)
        if decision.train != "skip":
            made += 1
            given = updates[made - 1] if made <= len(updates) else {}
            state = decider.observe(state, update(decision.train, **{"published": made} | given))
        json.dumps(state)
    return state, decisions


def make_oracle(actions):
    """The decider that knows the best action of every query in hindsight."""

    def decide(state, query):
        action = actions[query.index] if query.index < len(actions) else "skip"
        return state, Decision(action, action if is_full(query, action) else "skip")

    return Decider(dict, decide)


def test_never():
    assert set(serve(make_decider("never"), [query()] * 20)[1]) == {Decision()}


def test_osd_updates_every_eight_queries():
    decider = make_decider("osd")
    _, decisions = serve(decider, [query(i) for i in range(24)])
    assert [i for i, one in enumerate(decisions) if one.train == "full"] == [7, 15, 23]
    assert decider.rejected_only and not decider.anchored and not decider.gated


def test_a_first_update_is_not_made_before_it_is_paid():
    """Of a hundred queries of a second, updates may take one second."""
    full = [query(i, filled=ROOM["full"], draws=(0.9, 0.1, 0.5)) for i in range(100)]
    for price, trains in ((0.5, True), (2.0, False)):
        dear = [one._replace(prices={"head": price, "full": price}) for one in full]
        decisions = serve(PAIRED, dear, [{"up": 0, "down": 3, "published": None}] * 100)[1]
        assert any(one.train != "skip" for one in decisions) == trains
        if trains:
            assert all(one.train == "skip" for one in decisions[:49])


def test_evidence_that_nobody_could_read_is_not_gathered():
    """In 64 queries of a second 0.64 are earned: before that, what is gathered would be gone."""
    full = [query(i, filled=ROOM["full"]) for i in range(300)]
    assert all(one.gather for one in serve(PAIRED, full[:20])[1])  # no price is known
    dear = [one._replace(prices={"head": 2.495, "full": 3.5}) for one in full]
    decisions = serve(PAIRED, dear)[1]
    trained = [i for i, one in enumerate(decisions) if one.train != "skip"]
    gathers = [i for i, one in enumerate(decisions) if one.gather]
    assert trained[0] == 249 and gathers[:65] == list(range(185, 250))
    cheap = [one._replace(prices={"head": 0.5, "full": 3.5}) for one in full]
    assert all(one.gather for one in serve(PAIRED, cheap)[1])


def test_versions_that_are_compared_need_evidence():
    """Older versions are compared until the last look after a change of the text."""
    state = PAIRED.init()
    state["account"]["costs"] = {"head": 1e3, "full": 1e3}
    for age, versions, gathers in ((3, [1], True), (3, [], False), (14, [1], False)):
        rivals = state["rivals"] | {"age": age, "versions": versions}
        decision = PAIRED.decide(state | {"rivals": rivals}, query(0))[1]
        assert decision.gather == gathers, (age, versions)


@pytest.mark.parametrize("action", ["head", "full"])
def test_always_updates_when_the_buffer_is_full(action):
    decider = make_decider(f"always-{action}")
    room = ROOM[action]
    for filled, train in ((room - 11, "skip"), (room - 10, action)):
        _, (decision,) = serve(decider, [query(filled=filled, fresh=10)])
        assert decision == Decision(action, train)


def test_random_takes_all_actions():
    random = np.random.default_rng(0)
    queries = [query(i, draws=tuple(random.random(3))) for i in range(300)]
    kept = [one.keep for one in serve(make_decider("random"), queries)[1]]
    assert all(70 < kept.count(action) < 130 for action in ("skip", "head", "full"))


def test_unknown_names():
    with pytest.raises(ValueError, match="unknown decider 'bandit': did you mean 'bandit-paper'"):
        make_decider("bandit")


def test_the_oracle_cannot_serve():
    with pytest.raises(ValueError, match="the oracle knows results beforehand.*never, always-head"):
        make_decider("oracle")


def rich(values):
    """A state of bandit-paired after 50 queries, in which updates are paid."""
    state = PAIRED.init() | {"seen": 50}
    state["account"]["balance"] = 100.0
    state["values"] |= values
    return state


def test_paired_does_not_wait_for_full_buffers():
    """An update that is paid needs a quarter of a buffer; `always-head` needs all of it."""
    start = rich({})
    for filled, trains in ((127, "skip"), (128, "head")):
        assert PAIRED.decide(start, query(50, filled=filled))[1].train == trains
    assert PAIRED.room == {"head": 128, "full": 256} and make_decider("always-head").room is None


def test_paired_leaves_skip():
    """An alarm after a shift of domains, or the slow way back of the values. Buffers fill
    meanwhile.
    """
    state = start = rich({"known": {"head": -0.01, "full": -0.01}, "armed": 8})
    for i in range(60):
        state, decision = PAIRED.decide(state, query(i, pace=3.0, filled=2000))
        assert decision == Decision("both")
    for i in range(60):  # the text has changed
        state, decision = PAIRED.decide(state, query(i, pace=1.5, filled=2000))
    assert decision.train == "head"
    state = start
    for i in range(40 * 32):
        state, decision = PAIRED.decide(state, query(i, pace=3.0, filled=2000))
    assert decision.train == "head"


def test_paired_counts_no_call_that_ends_with_its_first_token():
    state, _ = PAIRED.decide(PAIRED.init(), query())
    same, decision = PAIRED.decide(state, query()._replace(tokens=0, rounds=0))
    assert same == state and decision == Decision()


def test_paired_values_are_shares_of_errors_less_cost():
    state, _ = PAIRED.decide(PAIRED.init(), query(seconds=2.0))
    after = PAIRED.observe(state, update(up=12, down=4))["values"]["known"]
    assert math.isclose(after["head"], 0.9 * 0.01 + 0.1 * (8 / 40 - 0.1 / (512 * 2.0)))
    refused = PAIRED.observe(state, update(up=12, down=4, published=None))["values"]["known"]
    assert refused["head"] < 0.9 * 0.01  # a gain that is not published is none


def test_a_simulated_query_that_is_not_gathered_brings_nothing():
    queries = []

    def decide(state, query):
        queries.append(query)
        return state, Decision(gather=query.index % 2 == 0)

    simulate(PAIRED._replace(init=dict, decide=decide), Stream(lambda *_: 0.0, queries=4), 0)
    assert [query.fresh for query in queries] == [32, 32, 0, 32]


def test_trying_costs_little():
    """Updates that take long and gain nothing: one of each kind at most, or a hundredth of the
    time.
    """
    stream = Stream(lambda action, index, level: 0.0, update_seconds=(2.0, 6.0))
    for seed in range(5):
        run = simulate(make_decider("bandit-paired", {"head": 128, "full": 256}), stream, seed)
        assert 2.0 * run.updates <= 2.0 + 0.02 * run.seconds


def test_flips():
    before, after = np.array([1, 1, 0, 0, 0]) > 0, np.array([1, 0, 1, 1, 1]) > 0
    flips = count_flips(before, after, np.array([1, 1, 1, 1, 0]))
    assert flips == (2, 1, 4, 2) and math.isclose(flips.z, 1 / math.sqrt(3))


def test_windows_are_compared_by_domain():
    """A change of the mix is no change; the standard error is that of the formula."""
    random = np.random.default_rng(1)
    slow, fast = random.normal(0.5, 0.1, 20), random.normal(1.5, 0.1, 20)

    def window(paces):
        found = {}
        for domain, logs in paces.items():
            for log in logs:
                one = query(domain=domain)._replace(tokens=math.exp(log), rounds=1)
                found = add_query(found, one)
        return found

    before = window({"slow": slow[:10], "fast": fast[:10]})
    after = window({"slow": slow[10:], "other": fast})
    change, error = compare_windows(before, after)
    assert math.isclose(change, slow[10:].mean() - slow[:10].mean(), abs_tol=1e-9)
    pooled = (slow[:10].var() + slow[10:].var()) * 10 / 18
    assert math.isclose(error, math.sqrt(pooled * 0.2), rel_tol=1e-6)
    assert compare_windows(before, window({"other": fast})) is None


def test_a_bad_version_is_taken_back_within_two_windows():
    for start in (32, 40, 63):
        random, watch = np.random.default_rng(start), Watch(32, 3.7, 0.02)
        state, restored = watch.init(), None
        for i in range(400):
            bad = i >= 128 + start
            pace = 3 * math.exp(0.18 * random.standard_normal() - 0.3 * bad)
            one = query()._replace(tokens=pace, rounds=1)
            state, restore = watch.add(state, one, 7 if bad else 3)
            if restore is not None:
                restored = (restore, i)
                break
        assert restored is not None and restored[0] == 3
        assert restored[1] <= 128 + start + 64


@pytest.mark.parametrize("streams", [40, pytest.param(200, marks=pytest.mark.slow)])
@pytest.mark.thorough
def test_null_streams(streams):
    """Updates that change nothing: our rule goes back in at most 1 % of the streams."""
    room = {"head": 128, "full": 256}
    ours, _ = measure_false_restores(make_decider("bandit-paired", room), streams)
    papers, _ = measure_false_restores(make_decider("bandit-paper", room), streams // 5)
    assert ours <= streams // 100
    assert papers >= streams // 5  # more than once per stream


def flips_sign(action, index, level):
    return (0.02 if action == "head" else 0.01) * (1 if index < 300 else -1)


def saturates(action, index, level):
    return (0.15 if action == "head" else 0.1) * (0.3 - level)


@pytest.mark.parametrize("gain", [flips_sign, saturates])
def test_regret(gain):
    """Seconds lost to the best fixed plan: at most a third of the paper's rule."""
    stream, best = Stream(gain), ["head"] * (300 if gain is flips_sign else 600)
    seconds = {
        name: sum(simulate(decider, stream, seed).seconds for seed in range(6))
        for name, decider in (
            ("paper", PAPER), ("ours", PAIRED), ("never", make_decider("never")), ("best", make_oracle(best))
        )
    }  # fmt: skip
    lost = {name: each - seconds["best"] for name, each in seconds.items()}
    assert lost["ours"] < lost["never"]
    assert lost["ours"] <= lost["paper"] / 3, lost


def test_every_decider_serves_a_stream():
    for name in DECIDERS:
        run = simulate(make_decider(name, {"head": 128, "full": 256}), Stream(saturates), 0)
        assert len(run.gains) == 600 and (run.updates > 0) == (name != "never")
