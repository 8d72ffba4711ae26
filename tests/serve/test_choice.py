"""Costs follow the clock, and visits are of the kind that gives more tokens a second."""

import numpy as np
import pytest

from jaxspec.serve.choice import DraftChoice, LiveCosts
from jaxspec.serve.costs import Costs

EDGES, PLAIN = (4, 8, 16), (4,)


def make_live(drafted=(2.0, 3.0, 4.0), plain=(1.0,)):
    return LiveCosts(Costs(drafted, plain), EDGES, PLAIN)


def test_costs_follow_the_times_of_visits():
    live = make_live()
    for _ in range(100):
        live.observe(True, np.asarray([8, 8, 8]), 18.0)
    assert live.drafted[:2] == pytest.approx([2.0, 6.0], rel=1e-3)
    assert live.drafted[2] >= live.drafted[1]  # more rows never cost less
    assert live.plain.tolist() == [1.0]
    live.observe(True, np.asarray([16]), 100.0)  # one visit corrects a little
    assert live.drafted[2] == pytest.approx(6.0 * 2**0.1, rel=1e-3)
    live.observe(True, np.asarray([], int), 1.0)


def test_a_cost_falls_below_stale_costs_of_fewer_rows():
    live = make_live()
    for _ in range(100):
        live.observe(True, np.asarray([16]), 1.5)
    assert live.drafted == pytest.approx([1.5, 1.5, 1.5], rel=1e-3)


def test_a_cost_that_was_not_seen_for_long_is_corrected_more():
    live = make_live()
    for _ in range(50):
        live.observe(True, np.asarray([8]), 3.0)
    live.observe(False, np.asarray([4]), 2.0)
    assert live.plain[0] == pytest.approx(2**0.5)


def test_times_that_are_not_those_of_the_rounds_alone_teach_nothing():
    live = make_live()
    live.observe(True, np.asarray([8]), None)
    live.observe(False, np.asarray([4]), 1.0)
    live.observe(True, np.asarray([8]), 6.0)  # absorbs what the plain round left
    assert live.drafted.tolist() == [2.0, 3.0, 4.0]
    live.observe(True, np.asarray([8]), 6.0)
    assert live.drafted[1] > 3.0


def test_the_time_of_a_visit_itself_is_not_that_of_its_rounds():
    live = LiveCosts(Costs((2.0, 3.0, 4.0), (1.0,), 0.5), EDGES, PLAIN)
    live.observe(True, np.asarray([8, 8]), 6.5)
    live.observe(False, np.asarray([4]), 1.5)
    assert live.drafted.tolist() == [2.0, 3.0, 4.0] and live.plain.tolist() == [1.0]


def test_while_the_drafter_rests_it_reads_new_requests_for_a_trial_only():
    choice = DraftChoice(make_live())
    assert choice.wants_followers() and choice.wants_drafts()
    run_visits(choice, 2, 3)
    assert not choice.wants_followers() and not choice.wants_drafts()
    for _ in range(64):
        assert not choice.wants_followers()
        choice.observe(False, np.ones((4, 1), int), np.full(1, 4))
    assert choice.wants_followers() and choice.wants_drafts()
    # It waits until no request runs that the drafter has not read, however long.
    choice.observe(False, np.ones((4, 50), int), np.full(50, 4))
    assert choice.wants_followers() and choice.wants_drafts()
    run_visits(choice, 2, 3)
    assert not choice.wants_followers()


def run_visits(choice, tokens, visits, live=None, took=(3.0, 1.0)):
    """Run visits of three rounds of four slots, of which drafted ones emit `tokens` for each slot.

    Args:
      live: costs that learn from the visits, if any do.
      took: true seconds of a drafted round, which has 8 rows, and of a plain one.

    Returns:
      Visits that drafted, and tokens per second of all.
    """
    drafted, emitted, seconds = 0, 0, 0.0
    for _ in range(visits):
        drafts = choice.wants_drafts()
        drafted += drafts
        emitted += 3 * 4 * (tokens if drafts else 1)
        seconds += 3 * (took[0] if drafts else took[1])
        rows = np.full(3, 8 if drafts else 4)
        if live is not None:
            live.observe(drafts, rows, 3 * (took[0] if drafts else took[1]))
        choice.observe(drafts, np.full((4, 3), tokens if drafts else 1), rows)
    return drafted, emitted / seconds


def test_drafting_goes_on_while_it_pays():
    # A drafted round takes three autoregressive ones, which give each slot a token.
    drafted, speed = run_visits(DraftChoice(make_live()), 4, 1000)
    assert drafted >= 980 and speed > 0.98 * 4 * 4 / 3


def test_drafting_stops_when_it_does_not_pay_and_tries_again_ever_later():
    choice = DraftChoice(make_live())
    assert run_visits(choice, 2, 9)[0] == 3  # of three rounds each: eight must be known
    drafted, speed = run_visits(choice, 2, 1000)
    assert 6 <= drafted <= 18 and speed > 0.98 * 4
    # It comes back when drafts become good: a trial or more later.
    run_visits(choice, 5, 3000)
    assert run_visits(choice, 5, 100)[0] >= 96


@pytest.mark.parametrize("tokens", [2, 4])
@pytest.mark.parametrize(
    ("drafted", "plain"),
    [
        ((2.0, 3.0, 4.0), (3.0,)),  # plain rounds were measured in a busy moment
        ((1.0, 1.0, 1.0), (1.0,)),  # drafted ones in a fast one
        ((9.0, 9.0, 9.0), (1.0,)),  # and in a slow one
        ((8.0, 12.0, 16.0), (4.0,)),  # the machine is faster than it was
    ],
)
def test_wrong_costs_do_not_mislead_for_long(tokens, drafted, plain):
    """Two drafted tokens do not pay, four do: a drafted round takes three plain ones."""
    live = make_live(drafted, plain)
    choice = DraftChoice(live)
    run_visits(choice, tokens, 600, live)
    share, speed = run_visits(choice, tokens, 600, live)
    assert speed > 0.97 * 4 * max(1, tokens / 3)
    assert (share > 300) == (tokens == 4)
