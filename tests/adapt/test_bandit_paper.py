"""SpecBlock's algorithm 1 as printed: decisions, values and rollbacks by hand."""

import json
import math

import adapt_toys as toys
import numpy as np
import pytest

from jaxspec.adapt import AdaptiveSession
from jaxspec.adapt.deciders import Decision, Query, UpdateResult, make_decider
from jaxspec.adapt.deciders.bandit_paper import PaperOptions, make_bandit_paper
from jaxspec.adapt.learning.cut import choose_positions

PAPER = make_bandit_paper()
SMALL = PaperOptions(warm_up=1, interval=2, window=100)
ROOM = {"head": 10, "full": 20}


def query(index=0, *, error=20.0, filled=0, fresh=0, draws=(0.9, 0.1, 0.5), seconds=1.0, pace=2.0):
    both = {"head": filled, "full": filled}
    return Query(index, "", int(30 * pace), 30, seconds, error, 30, both, fresh, draws)


def update(action, version=1):
    return UpdateResult(action, 0.1, 0, 0, 0, 0, version)


HEAD_BY_CHANCE, FULL_BY_CHANCE = (0.2, 0.1, 0.5), (0.2, 0.6, 0.5)
# What is known of each query, what to do after it, and v of the head then. Queries have 60 tokens.
SCRIPT = [
    (query(error=9, draws=HEAD_BY_CHANCE), Decision(), 0),  # warms up
    (query(error=9, draws=(0.35, 0.1, 0.5)), Decision(), 0),  # .35 is above epsilon, and v is 0
    (query(error=6, filled=4, fresh=3, draws=HEAD_BY_CHANCE), Decision("head"), 0),
    (query(error=6, filled=7, fresh=3, draws=FULL_BY_CHANCE), Decision("full"), 0),
    (query(error=4, filled=7, fresh=3, draws=HEAD_BY_CHANCE), Decision("head", "head"), 0),
    (query(error=9, filled=12, draws=HEAD_BY_CHANCE, seconds=0.5), Decision("head"), 0),
    # The interval ends twice as fast. But s of the query that triggered was 4, below s_min.
    (query(error=9, filled=12, draws=HEAD_BY_CHANCE, seconds=0.5), Decision("head"), 0),
    (query(error=9, filled=12, draws=(0.28, 0.1, 0.5)), Decision(), 0),  # epsilon fell to .2714
    *[(query(), Decision(), 0)] * 60,  # until the throughput before is 60 tokens a second
    (query(error=8, filled=12, draws=(0.27, 0.1, 0.5)), Decision("head", "head"), 0),
    (query(error=9, seconds=0.5), Decision(), 0),
    # 120 tokens a second after 60, for an error mass of 8: a tenth of 60 / 8.
    (query(error=9, seconds=0.5), Decision("head"), 0.75),
    (query(error=7, filled=12), Decision("head", "head"), 0.75),  # s * v is above 0
    (query(error=9, seconds=2.0), Decision("head"), 0.75),
]


def test_decisions_are_those_of_algorithm_1():
    decider, version = make_bandit_paper(SMALL, ROOM), 0
    state = decider.init()
    for number, (one, wanted, value) in enumerate(SCRIPT):
        state, decision = decider.decide(state, one)
        assert decision == wanted, number
        assert math.isclose(state["values"]["head"], value, rel_tol=1e-6), number
        if decision.train != "skip":
            version += 1
            state = decider.observe(state, update(decision.train, version))
        json.dumps(state)
    assert version == 3 and state["values"]["full"] == 0


def test_exploring_ends_with_the_eighth_update():
    """By chance until then, although both values are 0; afterwards never again."""
    state, full = PAPER.init() | {"seen": 10}, query(filled=2000, draws=(0.09, 0.9, 0.5))
    for made in range(8):
        for draw, wanted in ((0.31 - 0.2 * made / 7, "skip"), (0.29 - 0.2 * made / 7, "full")):
            _, decision = PAPER.decide(state, full._replace(draws=(draw, 0.9, 0.5)))
            assert decision.keep == decision.train == wanted
        state = PAPER.observe(state, update("full")) | {"quiet": 0}
    assert PAPER.decide(state, full)[1] == Decision()


def test_updates_that_follow_each_other_are_measured_apart():
    """An update during another's interval: both values move, each by its own reference and s."""
    state, seconds, references = PAPER.init(), [1.0] * 20 + [0.5] * 8 + [0.25] * 16, []
    for i, each in enumerate(seconds):
        state, _ = PAPER.decide(state, query(i, seconds=each))
        if i in (19, 27):
            references.append(state["before"][0] / state["before"][1])
            state["trigger"] = 10.0 if i == 19 else 20.0
            state = PAPER.observe(state, update("head" if i == 19 else "full"))
    speeds = [16 * 60 / (8 * 0.5 + 8 * 0.25), 60 / 0.25]
    for action, s, speed, reference in zip(
        ("head", "full"), (10, 20), speeds, references, strict=True
    ):
        assert math.isclose(state["values"][action], 0.1 * (speed - reference) / s, rel_tol=1e-6)
    assert not state["open"]


def serve_windows(paces, versions):
    """The windows at whose end a version is restored, and the last state."""
    state, restored = PAPER.init() | {"values": {"head": 1.0, "full": 1.0}}, []
    for number, (pace, version) in enumerate(zip(paces, versions, strict=True)):
        for i in range(16):
            state, decision = PAPER.decide(state, query(i, pace=pace)._replace(version=version))
            restored += [(number, decision.restore)] * (decision.restore is not None)
    return restored, state


def test_three_falling_windows_restore_the_latest_good_one():
    """Not the best one. Two falling ones, or equal ones, change nothing."""
    restored, state = serve_windows([4, 6, 3, 3, 5, 4, 4, 3, 2], range(9))
    assert restored == [(8, 6)]
    assert state["values"] == {"head": 0.0, "full": 0.0} and not state["open"]
    restored, _ = serve_windows([4, 6, 5, 4], [0, 1, 2, 2])
    assert restored == [(3, 1)]


def test_nothing_is_restored_if_the_good_version_decodes():
    restored, state = serve_windows([5, 4, 3], [2, 2, 2])
    assert not restored and state["values"] == {"head": 0.0, "full": 0.0}


def test_skip_is_final():
    state = PAPER.init() | {"updates": 8, "values": {"head": -1.0, "full": 0.0}, "seen": 50}
    for i in range(400):
        state, decision = PAPER.decide(state, query(i, pace=1.5, filled=2000, fresh=40))
        assert decision.keep == "skip"


def test_the_ablation_makes_no_head_updates():
    decider = make_decider("bandit-paper-full", ROOM)
    state, full = decider.init() | {"seen": 10}, query(filled=2000, draws=HEAD_BY_CHANCE)
    assert decider.decide(state, full)[1].train == "full"
    state["values"] = {"head": 5.0, "full": 1.0}
    assert decider.decide(state, query(filled=2000))[1].train == "full"
    state["values"] = {"head": 5.0, "full": 0.0}
    assert decider.decide(state, query(filled=2000))[1] == Decision()


def test_data_are_all_rejected_positions():
    """Of rounds of 3, 1 and 2 tokens, the first and the last of which ended in a rejection."""
    wanted = np.zeros((toys.SHAPE.rounds, toys.SHAPE.depths))
    wanted[0, 2] = wanted[2, 1] = 1
    for seed in range(20):
        found = choose_positions(
            np.array([3, 1, 2]),
            np.array([True, False, True]),
            toys.SHAPE.all_rejected(),
            np.random.default_rng(seed),
        )
        for array, expected in zip(found, (wanted, wanted, 0 * wanted), strict=True):
            np.testing.assert_array_equal(array, expected)


@pytest.mark.parametrize("name", ["osd", "bandit-paper"])
def test_papers_hold_nothing_out(name):
    session = AdaptiveSession(toys.make_params(), name, options=toys.ADAPT)
    for prompt in toys.ROUNDS[:4]:
        session.decode(prompt, **toys.OPTIONS)
    ring = session.buffers.ring
    assert np.asarray(ring.reject).sum() > 10 and not np.asarray(ring.held).any()
    np.testing.assert_array_equal(ring.weight, ring.reject)
    session.close()
