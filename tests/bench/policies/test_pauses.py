"""Replays of the controller's pauses, against loops in Python."""

import numpy as np
import pytest

from jaxspec.bench.policies.compare_pauses import (
    compare_bounds,
    render_pauses,
    summarise_losses,
)
from jaxspec.bench.policies.replay_pauses import RecordedText, always_speed, find_reach, replay
from jaxspec.policies.bastion.pauses import (
    Bounds,
    count_pause,
    init_pauses,
    record_gain,
    resume_pauses,
)

LONGEST = 4


def test_what_drafts_reach_from_every_place_follows_from_rounds():
    # Four tokens: nothing ended the draft. Then one of two drafts was accepted, then none.
    assert find_reach([4, 2, 1], LONGEST).tolist() == [4, 4, 4, 3, 2, 1, 1]
    # At the end of a text, no more tokens follow.
    assert find_reach([4, 4], LONGEST).tolist() == [4, 4, 4, 4, 4, 3, 2, 1]


def make_texts():
    random = np.random.default_rng(1)
    rates = {"easy": 0.8, "hard": 0.2, "both": 0.5}
    return [
        RecordedText(
            domain,
            find_reach(np.minimum(random.geometric(1 - rate, 30), LONGEST).tolist(), LONGEST),
        )
        for domain, rate in rates.items()
        for _ in range(3)
    ]


def walk(texts, cost, bounds):
    """The same replay, one text and round at a time."""
    state, time = init_pauses(LONGEST).replace(balance=np.float32(bounds.first)), 0.0
    for text in texts:
        state, place = resume_pauses(state, bounds), 0
        while place < len(text.reach):
            if int(state.left) == 0:
                taken, spent = int(text.reach[place]), cost
                state = record_gain(state, np.float32(taken - spent), bounds)
            else:
                taken, spent, state = 1, 1.0, count_pause(state)
            place, time = place + taken, time + spent
    return sum(len(text.reach) for text in texts) / time


@pytest.mark.parametrize("bounds", [Bounds(), Bounds(1.5, 3.0, 0.5)])
def test_a_replay_takes_the_time_of_a_walk(bounds):
    texts = make_texts()
    found = replay(texts, 1.4, LONGEST, [bounds, Bounds(1e9, 1e9, 1e9)])
    np.testing.assert_allclose(found[0], walk(texts, 1.4, bounds), rtol=1e-5)
    # Without pauses, every round drafts.
    np.testing.assert_allclose(found[1], always_speed(texts, 1.4), rtol=1e-5)
    assert found[0] != found[1]


def test_the_loss_is_against_the_better_of_both():
    records = compare_bounds(make_texts(), 1.4, LONGEST, [[2.0], [8.0], [0.5]])
    always, one = records
    assert set(one["speeds"]) == {"easy", "hard", "both", "mixed"} and always["losses"] is None
    better = {name: max(1.0, speed) for name, speed in always["speeds"].items()}
    losses = {name: 1 - one["speeds"][name] / better[name] for name in better}
    assert one["losses"] == pytest.approx(losses)
    assert always["speeds"]["hard"] < 1 < always["speeds"]["easy"]
    text = render_pauses(
        {
            "method": "jetspec-chain@4",
            "cost": 1.4,
            "results": [{"cost": 1.4} | record for record in records],
            "summary": summarise_losses(records),
        }
    )
    assert "2/8/0.5" in text and "takes 1.40 rounds of ar" in text


def test_losses_are_pooled_over_costs_and_streams():
    small, large = Bounds(2.0)._asdict(), Bounds(3.0)._asdict()
    results = [
        {"bounds": None, "losses": None},
        {"bounds": large, "losses": {"math": 0.1, "mixed": 0.3}},
        {"bounds": small, "losses": {"math": 0.0, "mixed": 0.1}},
        {"bounds": large, "losses": {"math": 0.2, "mixed": 0.2}},
    ]
    first, second = summarise_losses(results)
    assert (first["bounds"], second["bounds"]) == (small, large)
    assert (first["mean"], first["largest"]) == pytest.approx((0.05, 0.1))
    assert (second["mean"], second["largest"]) == pytest.approx((0.2, 0.3))
